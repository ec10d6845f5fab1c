// Counts calls of operator new in a test binary that allocation_count.cc is built into, except under
// ThreadSanitizer, whose runtime brings its own.
#pragma once

#include <cstdint>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MLAPREFILL_ALLOCATIONS_NOT_COUNTED
#endif
#endif

namespace mlaprefill {

#if defined(MLAPREFILL_ALLOCATIONS_NOT_COUNTED)
constexpr bool kAllocationsAreCounted = false;
#else
constexpr bool kAllocationsAreCounted = true;
#endif

int64_t allocation_count();

}  // namespace mlaprefill
