// A batch that owns its lengths, and random ones from a printed seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "mlaprefill/plan.h"

namespace mlaprefill::testing {

inline MlaDims small_dims() { return {2, 64, 32, 16, 32, 0.125}; }

struct Batch {
  std::vector<int32_t> query_lens;
  std::vector<int32_t> context_lens;
  int32_t block_size = 16;
  std::vector<int32_t> query_start_loc;

  Batch(std::vector<int32_t> query, std::vector<int32_t> context, int32_t block = 16)
      : query_lens(std::move(query)),
        context_lens(std::move(context)),
        block_size(block),
        query_start_loc{0} {
    for (int32_t length : query_lens) query_start_loc.push_back(query_start_loc.back() + length);
  }

  RaggedBatch view() const {
    RaggedBatch batch;
    batch.query_start_loc = query_start_loc;
    batch.context_lens = context_lens;
    batch.block_size = block_size;
    return batch;
  }

  int64_t keys(size_t r) const { return int64_t{context_lens[r]} + query_lens[r]; }

  /// Keys of the requests that have new tokens.
  int64_t active_keys() const {
    int64_t sum = 0;
    for (size_t r = 0; r < query_lens.size(); ++r) sum += query_lens[r] > 0 ? keys(r) : 0;
    return sum;
  }
};

/// Lengths with many zeros, some short and a few long ones.
inline int32_t random_length(std::mt19937_64& random, int32_t longest) {
  switch (random() % 4) {
    case 0:
      return 0;
    case 1:
      return static_cast<int32_t>(random() % 8);
    default:
      return static_cast<int32_t>(random() % static_cast<uint64_t>(longest + 1));
  }
}

inline Batch random_batch(std::mt19937_64& random, size_t most_requests = 12, int32_t longest = 200) {
  const size_t requests = random() % (most_requests + 1);
  std::vector<int32_t> query(requests);
  std::vector<int32_t> context(requests);
  for (int32_t& length : query) length = random_length(random, longest);
  for (int32_t& length : context) length = random_length(random, longest);
  constexpr int32_t block_sizes[] = {1, 8, 16, 48, 64};
  return Batch(std::move(query), std::move(context), block_sizes[random() % 5]);
}

inline PlanOptions with_mode(PlanMode mode, int64_t workspace_tokens) {
  PlanOptions options;
  options.mode = mode;
  options.workspace_tokens = workspace_tokens;
  return options;
}

inline int64_t count_continuations(const Plan& plan) {
  return std::count_if(plan.spans.begin(), plan.spans.end(),
                       [](const Span& span) { return span.continuation; });
}

inline constexpr PlanMode kAllModes[] = {PlanMode::kBridge, PlanMode::kMinContinuation, PlanMode::kVllm,
                                         PlanMode::kEvenSplit};

}  // namespace mlaprefill::testing
