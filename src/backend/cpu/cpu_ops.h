// The CPU backend's memory-bound operations. Arguments have been validated; work is spread over the calling
// thread's oneTBB arena.
#pragma once

#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {

/// MergeArgs on the host: any number of partials, in place, any strides, either LSE base.
void merge(const MergeArgs& args);

/// AppendArgs on the host: any cache format; slots have been checked.
void append(const AppendArgs& args);

}  // namespace mlaprefill::cpu
