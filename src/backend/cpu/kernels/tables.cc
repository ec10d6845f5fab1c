#include "backend/cpu/kernels/kernels.h"

namespace mlaprefill::cpu {

const KernelTable* kernel_table(IsaLevel level, Operand operand) {
  const bool bf16 = operand == Operand::kBF16;
  switch (level) {
    case IsaLevel::kScalar:
      return bf16 ? nullptr : &kScalarF32Kernels;
    case IsaLevel::kAvx2:
      return bf16 ? nullptr : &kAvx2F32Kernels;
    case IsaLevel::kAvx512:
      return bf16 ? nullptr : &kAvx512F32Kernels;
    case IsaLevel::kAvx512Bf16:
      return bf16 ? &kAvx512Bf16Kernels : &kAvx512F32Kernels;
    case IsaLevel::kAmxBf16:
      return bf16 ? &kAmxBf16Kernels : &kAvx512F32Kernels;
  }
  return nullptr;
}

Operand bf16_operand(IsaLevel level) {
  return kernel_table(level, Operand::kBF16) != nullptr ? Operand::kBF16 : Operand::kF32;
}

}  // namespace mlaprefill::cpu
