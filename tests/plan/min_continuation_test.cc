// Mode min_continuation against every possible choice of cuts, and where its search gives up.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "plan/batch.h"

namespace mlaprefill {
namespace {

using testing::Batch;
using testing::count_continuations;
using testing::small_dims;

struct Case {
  Batch batch;
  PlanOptions options;
  DeviceProperties device;
};

Plan make(const Case& c, PlanMode mode) {
  PlanOptions options = c.options;
  options.mode = mode;
  Result<Plan> plan = make_plan(small_dims(), c.batch.view(), options, c.device);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? plan.value() : Plan{};
}

/// (passes, continuations), the least in that order, by trying every legal end of every pass. Positions are
/// (request, key); a pass starts at row 0 and every span at a multiple of the row alignment.
class BruteForce {
 public:
  explicit BruteForce(const Case& c) : c_(c) {
    for (size_t r = 0; r < c.batch.query_lens.size(); ++r) {
      if (c.batch.query_lens[r] > 0) keys_.push_back(c.batch.keys(r));
    }
    best_.resize(keys_.size());
    for (size_t r = 0; r < keys_.size(); ++r) best_[r].assign(static_cast<size_t>(keys_[r]), {-1, -1});
  }

  std::pair<int64_t, int64_t> least(size_t request = 0, int64_t key = 0) {
    if (request == keys_.size()) return {0, 0};
    auto& best = best_[request][static_cast<size_t>(key)];
    if (best.first >= 0) return best;
    std::pair<int64_t, int64_t> least_found{int64_t{1} << 40, 0};
    const int64_t cut = std::lcm(int64_t{c_.device.row_alignment_rows},
                                 c_.options.invariant ? int64_t{c_.device.key_tile_tokens} : int64_t{1});
    int64_t row = 0;
    for (size_t r = request; r < keys_.size(); ++r) {
      row = (row + c_.device.row_alignment_rows - 1) / c_.device.row_alignment_rows *
            c_.device.row_alignment_rows;
      const int64_t begin = r == request ? key : 0;
      for (int64_t end = begin + 1; end <= keys_[r]; ++end) {
        if (row + end - begin > c_.options.workspace_tokens) break;
        const bool whole = end == keys_[r];
        if (!whole && end % cut != 0) continue;
        const auto rest = whole ? least(r + 1, 0) : least(r, end);
        least_found = std::min(least_found, {rest.first + 1, rest.second + (whole ? 0 : 1)});
      }
      row += keys_[r] - begin;
    }
    return best = least_found;
  }

 private:
  const Case& c_;
  std::vector<int64_t> keys_;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> best_;
};

Case random_case(uint64_t seed, bool invariant, int32_t row_alignment) {
  std::mt19937_64 random(seed);
  const size_t requests = 1 + random() % 10;
  std::vector<int32_t> query(requests);
  std::vector<int32_t> context(requests);
  for (int32_t& length : query) length = static_cast<int32_t>(random() % 3);
  for (int32_t& length : context) length = static_cast<int32_t>(random() % (random() % 3 == 0 ? 40 : 14));
  Case c{Batch(query, context), {}, {}};
  c.options.invariant = invariant;
  c.device.key_tile_tokens = 3;
  c.device.row_alignment_rows = row_alignment;
  const int64_t least = std::lcm(int64_t{row_alignment}, int64_t{3});
  c.options.workspace_tokens = (least + static_cast<int64_t>(random() % 25)) / row_alignment * row_alignment;
  return c;
}

void expect_optimal(bool invariant, int32_t row_alignment) {
  for (uint64_t seed = 0; seed < 3000 && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed, invariant, row_alignment);
    const Plan plan = make(c, PlanMode::kMinContinuation);
    const auto [passes, continuations] = BruteForce(c).least();
    EXPECT_EQ(static_cast<int64_t>(plan.passes.size()), passes);
    EXPECT_EQ(count_continuations(plan), continuations);
    EXPECT_EQ(make(c, PlanMode::kBridge).passes.size(), plan.passes.size());
  }
}

TEST(MinContinuationOptimal, AnyCut) { expect_optimal(false, 1); }
TEST(MinContinuationOptimal, KeyTileCuts) { expect_optimal(true, 1); }
TEST(MinContinuationOptimal, AlignedRows) { expect_optimal(false, 4); }
TEST(MinContinuationOptimal, KeyTileCutsInAlignedRows) { expect_optimal(true, 2); }

TEST(MinContinuation, HalvesTheContinuationsOfOrdinaryBatches) {
  // 16 requests of U(0, 32k) context, workspace 64k: published simulations have 3.49 against 0.92.
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int64_t filled = 0;
  int64_t searched = 0;
  for (int i = 0; i < 500; ++i) {
    std::vector<int32_t> context(16);
    for (int32_t& length : context) length = static_cast<int32_t>(random() % 32768);
    Case c{Batch(std::vector<int32_t>(16, 1), context), {}, {}};
    c.options.workspace_tokens = 65536;
    filled += count_continuations(make(c, PlanMode::kBridge));
    searched += count_continuations(make(c, PlanMode::kMinContinuation));
  }
  EXPECT_LT(2 * searched, filled);
}

TEST(MinContinuation, KeepsTheBordersFoundWhenTheSearchIsCutShort) {
  // Key tiles make filling a step for each pass, and short passes among many requests take many of them.
  std::mt19937_64 random(3);
  std::vector<int32_t> context(1000);
  for (int32_t& length : context) length = static_cast<int32_t>(50 + random() % 50 * 4);
  Case c{Batch(std::vector<int32_t>(context.size(), 1), context), {}, {}};
  c.options.invariant = true;
  c.options.workspace_tokens = 128;
  const Plan bridge = make(c, PlanMode::kBridge);
  const Plan plan = make(c, PlanMode::kMinContinuation);
  const auto [passes, continuations] = BruteForce(c).least();
  EXPECT_EQ(static_cast<int64_t>(plan.passes.size()), passes);
  EXPECT_LT(count_continuations(plan), count_continuations(bridge));
  EXPECT_GT(count_continuations(plan), continuations);
}

}  // namespace
}  // namespace mlaprefill
