// float32 kernels on AVX-512 F, CD, BW, DQ and VL.
#include "backend/cpu/kernels/f32_table-inl.h"

namespace mlaprefill::cpu {

const KernelTable kAvx512F32Kernels = f32_table(IsaLevel::kAvx512);

}  // namespace mlaprefill::cpu
