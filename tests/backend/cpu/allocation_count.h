// Counts calls of operator new in this test binary.
#pragma once

#include <cstdint>

namespace mlaprefill::cpu {

int64_t allocation_count();

}  // namespace mlaprefill::cpu
