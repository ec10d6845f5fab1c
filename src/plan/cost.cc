// Arithmetic of one layer under a plan.
#include "plan/steps.h"

namespace mlaprefill {

PlanCost count_cost(const Plan& plan) {
  PlanCost cost;
  for (const Span& span : plan.spans) cost.expanded_rows += span.length();
  // New tokens sum to less than 2^31 and a request has less than 2^31 keys: the pairs stay below 2^62.
  for (size_t r = 0; r < plan.query_lens.size(); ++r) {
    const int64_t query = plan.query_lens[r];
    cost.visible_pairs += query * plan.context_lens[r] + query * (query + 1) / 2;
  }
  const double heads = plan.dims.num_heads;
  const double qk_and_v = static_cast<double>(plan.dims.qk_head_dim() + plan.dims.v_head_dim);
  const double expanded = static_cast<double>(plan.dims.expanded_head_dim());
  cost.attention_flop = 2.0 * qk_and_v * heads * static_cast<double>(cost.visible_pairs);
  cost.expand_flop =
      2.0 * plan.dims.kv_lora_rank * expanded * heads * static_cast<double>(cost.expanded_rows);
  return cost;
}

}  // namespace mlaprefill
