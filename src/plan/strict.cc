// `strict`: the refusals of the published repair, naming the rows.
#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "plan/steps.h"

namespace mlaprefill {
namespace {

/// "[1, 3]", or the first eight and how many more there are.
std::string list_some(const std::vector<int32_t>& rows) {
  constexpr size_t shown = 8;
  const std::vector<int32_t> head(rows.begin(),
                                  rows.begin() + static_cast<ptrdiff_t>(std::min(shown, rows.size())));
  if (rows.size() <= shown) return fmt::format("[{}]", fmt::join(head, ", "));
  return fmt::format("[{}, ... {} more]", fmt::join(head, ", "), rows.size() - shown);
}

}  // namespace

Status refuse_mixed_batch(const Plan& plan) {
  if (plan.verdict != Verdict::kMixed) return {};
  std::vector<int32_t> empty;
  for (int32_t r = 0; r < plan.num_requests; ++r) {
    if (plan.query_lens[static_cast<size_t>(r)] == 0) empty.push_back(r);
  }
  return error(StatusCode::kInactiveRows,
               "query_lens: strict requires all rows active or all empty, got empty rows {} of {}",
               list_some(empty), plan.num_requests);
}

Status refuse_inactive_passes(const Plan& plan) {
  for (size_t p = 0; p < plan.passes.size(); ++p) {
    const Pass& pass = plan.passes[p];
    if (pass.all_rows_active) continue;
    std::vector<int32_t> inactive;
    for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
      const Span& span = plan.spans[static_cast<size_t>(s)];
      const bool active = span.length() > 0 && plan.query_lens[static_cast<size_t>(span.request)] > 0;
      if (!active) inactive.push_back(span.request);
    }
    return error(StatusCode::kInactiveRows,
                 "passes[{}]: strict requires a query and a key in every row, got inactive rows {} of {}", p,
                 list_some(inactive), pass.span_end - pass.span_begin);
  }
  return {};
}

}  // namespace mlaprefill
