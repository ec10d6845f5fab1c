// Plans of one shape for a captured graph.
#include "core/error.h"
#include "plan/steps.h"

namespace mlaprefill {
namespace {

Status check_bound(const char* name, int64_t most, int64_t value) {
  if (value <= most) return {};
  return error(StatusCode::kLimitExceeded, "{}: must be <= bounds.max_{} = {}, got {}", name, name, most,
               value);
}

}  // namespace

Status fill_to_bounds(Plan& plan) {
  const PlanBounds& bounds = *plan.options.bounds;
  MLAPREFILL_RETURN_IF_ERROR(check_bound("requests", bounds.max_requests, plan.num_requests));
  MLAPREFILL_RETURN_IF_ERROR(check_bound("query_rows", bounds.max_query_rows, plan.num_query_rows));
  MLAPREFILL_RETURN_IF_ERROR(
      check_bound("passes", bounds.max_passes, static_cast<int64_t>(plan.passes.size())));
  if (bounds.block_size > 0 && !plan.blocks.empty() && plan.block_size != bounds.block_size) {
    return invalid("block_size: must be bounds.block_size = {}, got {}", bounds.block_size, plan.block_size);
  }
  const int64_t end = static_cast<int64_t>(plan.spans.size());
  plan.passes.resize(static_cast<size_t>(bounds.max_passes), Pass{.span_begin = end, .span_end = end});
  return {};
}

}  // namespace mlaprefill
