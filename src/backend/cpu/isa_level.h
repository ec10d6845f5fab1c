// The ISA levels the CPU kernels are compiled for.
#pragma once

#include <cstdint>

namespace mlaprefill::cpu {

/// Each level's instructions are a superset of the one before it.
enum class IsaLevel : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16 };

}  // namespace mlaprefill::cpu
