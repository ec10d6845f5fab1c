// Replays a request trace through scheduler, planner and layer.
#pragma once

#include <functional>

#include "io/traces/trace.h"
#include "mlaprefill/status.h"
#include "replay/report.h"

namespace mlaprefill {

struct ReplayProgress {
  int64_t steps = 0;
  int64_t prefill_tokens = 0;
  double fraction = 0.0;  ///< of the trace's input tokens, hits included
  double elapsed_s = 0.0;
};

/// Runs the whole trace. `progress`, when given, is called at most a few times a second. An ok result may
/// still hold mismatches (ReplayReport::check).
Result<ReplayReport> replay_trace(const Trace& trace, const ReplayOptions& options,
                                  const std::function<void(const ReplayProgress&)>& progress = {});

}  // namespace mlaprefill
