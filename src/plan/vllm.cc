// Modes vllm and even_split: context chunks first, cut at cache blocks, then one pass of new tokens.
#include <algorithm>
#include <numeric>

#include "core/checked.h"
#include "core/error.h"
#include "plan/pass_builder.h"
#include "plan/steps.h"

namespace mlaprefill {
namespace {

Status refuse_too_many_spans(const Plan& plan, int64_t spans) {
  if (spans <= kMaxSplitSpans) return {};
  return error(StatusCode::kLimitExceeded,
               "workspace_tokens: must give at most {} spans in mode {}, got {} of {}", kMaxSplitSpans,
               to_string(plan.options.mode), plan.options.workspace_tokens, spans);
}

void add_new_tokens(Plan& plan) {
  if (plan.verdict == Verdict::kEmpty) return;
  PassBuilder builder(plan);
  builder.open(PassKind::kNew);
  for (int32_t r = 0; r < plan.num_requests; ++r) {
    const int64_t context = plan.context_lens[static_cast<size_t>(r)];
    const int64_t query = plan.query_lens[static_cast<size_t>(r)];
    if (query > 0) builder.add(r, context, context + query);
  }
}

}  // namespace

int64_t page_cut_tokens(const PlanOptions& options, const DeviceProperties& device, int64_t block_size) {
  return std::lcm(block_size, options.invariant ? int64_t{device.key_tile_tokens} : int64_t{1});
}

Status plan_vllm(Plan& plan) {
  const int64_t page = page_cut_tokens(plan.options, plan.device, plan.block_size);
  const int64_t budget = std::max(plan.options.workspace_tokens, page);
  int64_t context_tokens = 0;
  for (int32_t context : plan.context_lens) context_tokens += context;
  MLAPREFILL_RETURN_IF_ERROR(refuse_too_many_spans(plan, ceil_div(context_tokens, budget)));

  PassBuilder builder(plan);
  const size_t num_requests = plan.context_lens.size();
  plan.spans.reserve(2 * num_requests);
  size_t r = 0;
  int64_t start = 0;
  while (true) {
    while (r < num_requests && plan.context_lens[r] == 0) ++r;
    if (r == num_requests) break;
    builder.open(PassKind::kContext);
    while (r < num_requests && plan.context_lens[r] > 0) {
      const int64_t remaining = plan.context_lens[r] - start;
      const int64_t free = std::max<int64_t>(budget - builder.next_row(), 0);
      if (remaining <= free) {
        builder.add(static_cast<int32_t>(r), start, start + remaining);
        ++r;
        start = 0;
        continue;
      }
      const int64_t piece = round_down(std::min(free, remaining - 1), page);
      if (piece > 0) builder.add(static_cast<int32_t>(r), start, start + piece);
      start += piece;
      break;
    }
  }
  add_new_tokens(plan);
  return {};
}

Status plan_even_split(Plan& plan) {
  const auto with_context = std::count_if(plan.context_lens.begin(), plan.context_lens.end(),
                                          [](int32_t context) { return context > 0; });
  if (with_context > 0) {
    const int64_t page = page_cut_tokens(plan.options, plan.device, plan.block_size);
    const int64_t longest = *std::max_element(plan.context_lens.begin(), plan.context_lens.end());
    const int64_t share = round_down(plan.options.workspace_tokens / with_context, page);
    const int64_t chunk = std::clamp(share, page, std::max(longest, page));
    const int64_t num_chunks = ceil_div(longest, chunk);
    MLAPREFILL_RETURN_IF_ERROR(
        refuse_too_many_spans(plan, num_chunks == 1 ? 1 : num_chunks * plan.num_requests));

    PassBuilder builder(plan);
    plan.spans.reserve(static_cast<size_t>((num_chunks + 1) * plan.num_requests));
    for (int64_t begin = 0; begin < longest; begin += chunk) {
      builder.open(PassKind::kContext);
      for (int32_t r = 0; r < plan.num_requests; ++r) {
        const int64_t context = plan.context_lens[static_cast<size_t>(r)];
        builder.add(r, std::min(begin, context), std::min(begin + chunk, context));
      }
    }
  }
  add_new_tokens(plan);
  return {};
}

}  // namespace mlaprefill
