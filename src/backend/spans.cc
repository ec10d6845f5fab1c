#include "backend/spans.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace mlaprefill {
namespace {

Status check_rows(size_t index, const char* name, int64_t begin, int64_t length, int64_t rows) {
  if (begin < 0) return invalid("spans[{}].{}_row: must be >= 0, got {}", index, name, begin);
  if (length < 0) return invalid("spans[{}].{}_len: must be >= 0, got {}", index, name, length);
  if (length > rows || begin > rows - length) {
    return error(StatusCode::kOutOfRange, "spans[{}]: {} rows must end at or before row {}, got {} + {}",
                 index, name, rows, begin, length);
  }
  return {};
}

Status check_disjoint(std::span<const AttentionSpan> spans) {
  const auto shared = [](const AttentionSpan& earlier, const AttentionSpan& later) {
    return invalid("spans: must not share query rows, got [{}, {}) and [{}, {})", earlier.q_row,
                   earlier.q_row + earlier.q_len, later.q_row, later.q_row + later.q_len);
  };
  bool ordered = true;
  int64_t end = 0;
  for (const AttentionSpan& span : spans) {
    if (span.q_len == 0) continue;
    if (span.q_row < end) {
      ordered = false;
      break;
    }
    end = span.q_row + span.q_len;
  }
  if (ordered) return {};

  std::vector<const AttentionSpan*> sorted;
  sorted.reserve(spans.size());
  for (const AttentionSpan& span : spans) {
    if (span.q_len > 0) sorted.push_back(&span);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const AttentionSpan* a, const AttentionSpan* b) { return a->q_row < b->q_row; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->q_row < sorted[i - 1]->q_row + sorted[i - 1]->q_len) {
      return shared(*sorted[i - 1], *sorted[i]);
    }
  }
  return {};
}

Status check_cumulative(const char* name, std::span<const int32_t> lens, int64_t rows) {
  if (lens.empty()) return invalid("{}: must have at least one entry, got 0", name);
  if (lens[0] != 0) return invalid("{}[0]: must be 0, got {}", name, lens[0]);
  for (size_t i = 1; i < lens.size(); ++i) {
    if (lens[i] < lens[i - 1]) {
      return invalid("{}[{}]: must be >= {}[{}] = {}, got {}", name, i, name, i - 1, lens[i - 1], lens[i]);
    }
  }
  if (lens.back() > rows) {
    return error(StatusCode::kOutOfRange, "{}[{}]: must be <= the tensor's {} rows, got {}", name,
                 lens.size() - 1, rows, lens.back());
  }
  return {};
}

}  // namespace

Status check_spans(std::span<const AttentionSpan> spans, int64_t q_rows, int64_t k_rows) {
  for (size_t i = 0; i < spans.size(); ++i) {
    const AttentionSpan& span = spans[i];
    MLAPREFILL_RETURN_IF_ERROR(check_rows(i, "q", span.q_row, span.q_len, q_rows));
    MLAPREFILL_RETURN_IF_ERROR(check_rows(i, "k", span.k_row, span.k_len, k_rows));
    if (span.causal_offset > AttentionSpan::kNotCausal || span.causal_offset < -AttentionSpan::kNotCausal) {
      return error(StatusCode::kLimitExceeded,
                   "spans[{}].causal_offset: must lie in -kNotCausal .. kNotCausal, got {}", i,
                   span.causal_offset);
    }
  }
  return check_disjoint(spans);
}

Result<std::vector<AttentionSpan>> make_attention_spans(std::span<const int32_t> cu_seqlens_q,
                                                        std::span<const int32_t> cu_seqlens_k, bool causal,
                                                        int64_t q_rows, int64_t k_rows) {
  MLAPREFILL_RETURN_IF_ERROR(check_cumulative("cu_seqlens_q", cu_seqlens_q, q_rows));
  MLAPREFILL_RETURN_IF_ERROR(check_cumulative("cu_seqlens_k", cu_seqlens_k, k_rows));
  if (cu_seqlens_q.size() != cu_seqlens_k.size()) {
    return invalid("cu_seqlens_k: must have as many entries as cu_seqlens_q = {}, got {}",
                   cu_seqlens_q.size(), cu_seqlens_k.size());
  }
  std::vector<AttentionSpan> spans(cu_seqlens_q.size() - 1);
  for (size_t r = 0; r < spans.size(); ++r) {
    AttentionSpan& span = spans[r];
    span.q_row = cu_seqlens_q[r];
    span.q_len = cu_seqlens_q[r + 1] - cu_seqlens_q[r];
    span.k_row = cu_seqlens_k[r];
    span.k_len = cu_seqlens_k[r + 1] - cu_seqlens_k[r];
    if (causal) span.causal_offset = span.k_len - span.q_len;
  }
  return spans;
}

}  // namespace mlaprefill
