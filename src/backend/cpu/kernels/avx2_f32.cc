// float32 kernels on AVX2 and FMA.
#include "backend/cpu/kernels/f32_table-inl.h"

namespace mlaprefill::cpu {

const KernelTable kAvx2F32Kernels = f32_table(IsaLevel::kAvx2);

}  // namespace mlaprefill::cpu
