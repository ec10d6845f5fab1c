// make_plan: host lengths in, one printable plan out.
#include "mlaprefill/plan.h"

#include <algorithm>

#include "core/error.h"
#include "plan/steps.h"

namespace mlaprefill {
namespace {

Verdict judge_new_tokens(const std::vector<int32_t>& query_lens) {
  const auto empty = std::count(query_lens.begin(), query_lens.end(), 0);
  if (static_cast<size_t>(empty) == query_lens.size()) return Verdict::kEmpty;
  return empty == 0 ? Verdict::kActive : Verdict::kMixed;
}

Status plan_passes(Plan& plan) {
  switch (plan.options.mode) {
    case PlanMode::kBridge:
      return plan_bridge(plan);
    case PlanMode::kMinContinuation:
      return plan_min_continuation(plan);
    case PlanMode::kVllm:
      return plan_vllm(plan);
    case PlanMode::kEvenSplit:
      return plan_even_split(plan);
  }
  return error(StatusCode::kInternal, "mode: must be validated, got {}", static_cast<int>(plan.options.mode));
}

}  // namespace

Result<Plan> make_plan(const MlaDims& dims, const RaggedBatch& batch, const PlanOptions& options,
                       const DeviceProperties& device) {
  MLAPREFILL_RETURN_IF_ERROR(validate(dims));
  MLAPREFILL_RETURN_IF_ERROR(validate(options));
  MLAPREFILL_RETURN_IF_ERROR(validate(device));
  if (options.bounds) MLAPREFILL_RETURN_IF_ERROR(validate(*options.bounds, options, device));
  MLAPREFILL_RETURN_IF_ERROR(validate(batch, options));

  Plan plan;
  plan.dims = dims;
  plan.options = options;
  plan.device = device;
  MLAPREFILL_RETURN_IF_ERROR(copy_batch(batch, plan));

  plan.verdict = judge_new_tokens(plan.query_lens);
  if (options.strict) MLAPREFILL_RETURN_IF_ERROR(refuse_mixed_batch(plan));

  MLAPREFILL_RETURN_IF_ERROR(plan_passes(plan));
  if (options.strict) MLAPREFILL_RETURN_IF_ERROR(refuse_inactive_passes(plan));

  if (options.bounds) MLAPREFILL_RETURN_IF_ERROR(fill_to_bounds(plan));
  if (device.query_tile_tokens > 0) MLAPREFILL_RETURN_IF_ERROR(add_tiles(plan));
  plan.cost = count_cost(plan);

  Result<WorkspaceLayout> workspace = lay_out_workspace(plan);
  if (!workspace.ok()) return workspace.status();
  plan.workspace = workspace.value();
  return plan;
}

}  // namespace mlaprefill
