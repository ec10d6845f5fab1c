// Names of the plan's enums, as they stand in JSON, text and options.
#include "core/error.h"
#include "mlaprefill/plan.h"

namespace mlaprefill {

std::string_view to_string(PlanMode mode) {
  switch (mode) {
    case PlanMode::kBridge:
      return "bridge";
    case PlanMode::kMinContinuation:
      return "min_continuation";
    case PlanMode::kVllm:
      return "vllm";
    case PlanMode::kEvenSplit:
      return "even_split";
  }
  return "unknown";
}

std::string_view to_string(PassKind kind) {
  switch (kind) {
    case PassKind::kContext:
      return "context";
    case PassKind::kNew:
      return "new";
    case PassKind::kJoint:
      return "joint";
  }
  return "unknown";
}

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kActive:
      return "active";
    case Verdict::kMixed:
      return "mixed";
    case Verdict::kEmpty:
      return "empty";
  }
  return "unknown";
}

Result<PlanMode> parse_plan_mode(std::string_view name) {
  for (PlanMode mode :
       {PlanMode::kBridge, PlanMode::kMinContinuation, PlanMode::kVllm, PlanMode::kEvenSplit}) {
    if (name == to_string(mode)) return mode;
  }
  return invalid("mode: must be bridge, min_continuation, vllm or even_split, got {}", name);
}

}  // namespace mlaprefill
