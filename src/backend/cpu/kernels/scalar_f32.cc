// float32 kernels without vector instructions: for machines without AVX2, and to test against.
#define MLAPREFILL_SCALAR_KERNELS
#include "backend/cpu/kernels/f32_table-inl.h"

namespace mlaprefill::cpu {

const KernelTable kScalarF32Kernels = f32_table(IsaLevel::kScalar);

}  // namespace mlaprefill::cpu
