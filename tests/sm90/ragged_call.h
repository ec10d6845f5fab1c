// Attention calls without a plan, as far as their schedules read them.
#pragma once

#include <cstdint>
#include <vector>

#include "mlaprefill/backend.h"

namespace mlaprefill::sm90 {

struct Request {
  int64_t new_tokens;
  int64_t keys;
};

/// Spans over keys and queries that follow one another; causal ones are bottom-right.
inline std::vector<AttentionSpan> spans_of(const std::vector<Request>& requests, bool causal) {
  std::vector<AttentionSpan> spans;
  int64_t q_row = 0, k_row = 0;
  for (const Request& request : requests) {
    AttentionSpan span{.q_row = q_row, .q_len = request.new_tokens, .k_row = k_row, .k_len = request.keys};
    if (causal) span.causal_offset = request.keys - request.new_tokens;
    spans.push_back(span);
    q_row += request.new_tokens;
    k_row += request.keys;
  }
  return spans;
}

/// Tensors without data, of heads of (128, 64, 128); `spans` must outlive the result.
inline AttentionArgs args_of(const std::vector<AttentionSpan>& spans, int64_t heads) {
  const AttentionSpan& last = spans.back();
  AttentionArgs args;
  args.q = ConstTensor(nullptr, DType::kBF16, {last.q_row + last.q_len, heads, 192});
  args.k = ConstTensor(nullptr, DType::kBF16, {last.k_row + last.k_len, heads, 128});
  args.v = ConstTensor(nullptr, DType::kBF16, {last.k_row + last.k_len, heads, 128});
  args.spans = spans;
  return args;
}

}  // namespace mlaprefill::sm90
