// Built-in request traces, made from published length statistics.
#pragma once

#include <cstdint>
#include <string_view>

#include "io/traces/trace.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

struct WorkloadOptions {
  int64_t requests = 80;
  int64_t length_divisor = 1;    ///< every length is divided by this
  int64_t max_input_tokens = 0;  ///< the model's limit, 0: none; longer inputs are shortened to it
  uint64_t seed = 1;
};

/// "agentic": sessions of a coding agent, whose turns extend one another and share one prompt of tools and
/// system text. "fixed": every request 8192 tokens in, 128 out, nothing shared.
Result<Trace> make_workload(std::string_view name, const WorkloadOptions& options);

}  // namespace mlaprefill
