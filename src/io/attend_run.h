// Running a case on a backend.
#pragma once

#include <cstdint>

#include "io/attend_case.h"
#include "io/owned_tensor.h"
#include "mlaprefill/backend.h"
#include "mlaprefill/plan.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

struct AttendOptions {
  PlanMode mode = PlanMode::kBridge;
  int64_t workspace_tokens = PlanOptions{}.workspace_tokens;
  bool invariant = false;
  bool strict = false;    ///< refuse requests without queries or keys
  bool composed = false;  ///< expand + attend over the plan's passes even where the backend has a fused layer
};

struct AttendOutput {
  OwnedTensor out;  ///< [T, H, Dv] in q's dtype
  OwnedTensor lse;  ///< [H, T] float32, natural logarithm
};

/// Plans where the case is a layer, runs, and brings the result to host memory. A plain case has no plan, so
/// mode, workspace_tokens and composed do not concern it.
Result<AttendOutput> run_attend_case(const AttendCase& attend_case, const Backend& backend,
                                     const AttendOptions& options);

}  // namespace mlaprefill
