// Properties of every plan, over seeded random batches; the seed is in the failure's trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "core/checked.h"
#include "plan/batch.h"

namespace mlaprefill {
namespace {

using testing::Batch;
using testing::kAllModes;
using testing::random_batch;
using testing::small_dims;

constexpr uint64_t kSeeds = 10000;

struct Case {
  Batch batch;
  PlanOptions options;
  DeviceProperties device;
};

Case random_case(uint64_t seed, int32_t longest = 200) {
  std::mt19937_64 random(seed);
  Case c{random_batch(random, 12, longest), {}, {}};
  c.options.mode = kAllModes[random() % 4];
  c.options.invariant = random() % 3 == 0;
  if (random() % 3 == 0) c.device.row_alignment_rows = static_cast<int32_t>(1 + random() % 16);
  c.device.key_tile_tokens = random() % 2 == 0 ? 16 : 24;
  c.device.query_tile_tokens = static_cast<int32_t>(random() % 3 * 8);
  const int64_t least = std::lcm(c.device.row_alignment_rows, c.device.key_tile_tokens);
  c.options.workspace_tokens = static_cast<int64_t>(random() % 300);
  c.options.workspace_tokens += c.options.invariant || c.device.row_alignment_rows > 1 ? least : 1;
  return c;
}

Plan make(const Case& c) {
  Result<Plan> plan = make_plan(small_dims(), c.batch.view(), c.options, c.device);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? plan.value() : Plan{};
}

bool joint(const Plan& plan) {
  return plan.options.mode == PlanMode::kBridge || plan.options.mode == PlanMode::kMinContinuation;
}

/// Calls visit(seed, case, plan) for many random cases, until the first failure.
template <typename Visit>
void for_random_plans(Visit visit) {
  for (uint64_t seed = 0; seed < kSeeds && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed);
    visit(c, make(c));
  }
}

TEST(PlanProperty, EveryVisiblePairIsCountedOnce) {
  for (uint64_t seed = 0; seed < 2000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Case c = random_case(seed, 40);
    const Plan plan = make(c);
    std::map<std::tuple<int32_t, int64_t, int64_t>, int> seen;  // (request, query, key)
    for (const Span& span : plan.spans) {
      const size_t r = static_cast<size_t>(span.request);
      for (int64_t i = 0; i < c.batch.query_lens[r]; ++i) {
        const int64_t last_visible = c.batch.context_lens[r] + i;
        for (int64_t key = span.key_begin; key < std::min(span.key_end, last_visible + 1); ++key) {
          EXPECT_EQ(++seen[std::make_tuple(span.request, i, key)], 1);
        }
      }
    }
    int64_t visible = 0;
    for (size_t r = 0; r < c.batch.query_lens.size(); ++r) {
      for (int64_t i = 0; i < c.batch.query_lens[r]; ++i) visible += c.batch.context_lens[r] + i + 1;
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), visible);
    EXPECT_EQ(plan.cost.visible_pairs, visible);
  }
}

TEST(PlanProperty, SpansTileTheKeysOfEachRequestInOrder) {
  for_random_plans([](const Case& c, const Plan& plan) {
    std::vector<int64_t> next(c.batch.query_lens.size(), 0);
    for (const Span& span : plan.spans) {
      const size_t r = static_cast<size_t>(span.request);
      EXPECT_EQ(span.key_begin, next[r]);
      EXPECT_GE(span.key_end, span.key_begin);
      next[r] = span.key_end;
      const bool has_keys = span.length() > 0;
      EXPECT_EQ(span.first, has_keys && span.key_begin == 0);
      EXPECT_EQ(span.last, has_keys && span.key_end == c.batch.keys(r));
    }
    for (size_t r = 0; r < next.size(); ++r) {
      const bool skipped = joint(plan) && c.batch.query_lens[r] == 0;
      EXPECT_EQ(next[r], skipped ? 0 : c.batch.keys(r)) << "request " << r;
    }
  });
}

TEST(PlanProperty, PassesFitTheWorkspaceAndKeepSpansApart) {
  for_random_plans([](const Case& c, const Plan& plan) {
    int64_t span = 0;
    for (const Pass& pass : plan.passes) {
      EXPECT_EQ(pass.span_begin, span);
      span = pass.span_end;
      EXPECT_LT(pass.span_begin, pass.span_end);
      int64_t row = 0;
      bool active = true;
      for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
        const Span& piece = plan.spans[static_cast<size_t>(s)];
        EXPECT_GE(piece.row_begin, row);
        EXPECT_EQ(piece.row_begin % c.device.row_alignment_rows, 0);
        if (piece.length() > 0) row = piece.row_begin + piece.length();
        active = active && piece.length() > 0 && c.batch.query_lens[static_cast<size_t>(piece.request)] > 0;
      }
      EXPECT_EQ(pass.rows, row);
      EXPECT_EQ(pass.all_rows_active, active);
      const int64_t page =
          std::lcm(c.batch.block_size, c.options.invariant ? c.device.key_tile_tokens : int32_t{1});
      if (pass.kind == PassKind::kJoint) {
        EXPECT_LE(pass.rows, c.options.workspace_tokens);
      }
      if (pass.kind == PassKind::kContext && c.options.mode == PlanMode::kVllm) {
        EXPECT_LE(pass.rows, std::max(c.options.workspace_tokens, page));
      }
    }
    EXPECT_EQ(span, static_cast<int64_t>(plan.spans.size()));
  });
}

TEST(PlanProperty, JointPassCountIsTheLowerBoundOutsideInvariantMode) {
  for_random_plans([](const Case& c, const Plan& plan) {
    if (!joint(plan) || c.options.invariant || c.device.row_alignment_rows != 1) return;
    EXPECT_EQ(static_cast<int64_t>(plan.passes.size()),
              ceil_div(c.batch.active_keys(), c.options.workspace_tokens));
  });
}

TEST(PlanProperty, InvariantCutsDoNotDependOnTheBatch) {
  for_random_plans([](const Case& c, const Plan& plan) {
    if (!c.options.invariant) return;
    for (const Span& span : plan.spans) {
      const bool at_new_tokens = span.key_begin == c.batch.context_lens[static_cast<size_t>(span.request)];
      EXPECT_TRUE(span.key_begin % c.device.key_tile_tokens == 0 || (!joint(plan) && at_new_tokens));
    }
  });
}

TEST(PlanProperty, SameInputSamePlan) {
  for_random_plans([](const Case& c, const Plan& plan) {
    const Plan again = make(c);
    EXPECT_EQ(fingerprint(plan), fingerprint(again));
    EXPECT_EQ(to_json(plan), to_json(again));
  });
}

TEST(PlanProperty, OrderOfRequestsChangesNeitherWorkNorPassCount) {
  for (uint64_t seed = 0; seed < 2000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Case c = random_case(seed);
    c.options.mode = PlanMode::kBridge;
    c.options.invariant = false;
    c.device.row_alignment_rows = 1;
    const Plan plan = make(c);
    std::vector<size_t> order(c.batch.query_lens.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(seed);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<int32_t> query;
    std::vector<int32_t> context;
    for (size_t r : order) {
      query.push_back(c.batch.query_lens[r]);
      context.push_back(c.batch.context_lens[r]);
    }
    c.batch = Batch(query, context, c.batch.block_size);
    const Plan shuffled = make(c);
    EXPECT_EQ(shuffled.cost.visible_pairs, plan.cost.visible_pairs);
    EXPECT_EQ(shuffled.cost.expanded_rows, plan.cost.expanded_rows);
    EXPECT_EQ(shuffled.passes.size(), plan.passes.size());
    EXPECT_EQ(shuffled.verdict, plan.verdict);
  }
}

/// The greedy chunks, found by trying every page count of a split from the largest down.
std::vector<std::vector<std::array<int64_t, 3>>> greedy_chunks(const std::vector<int32_t>& context,
                                                               int64_t workspace, int64_t page) {
  std::vector<std::vector<std::array<int64_t, 3>>> chunks;
  int64_t used = 0;
  bool open = false;
  for (size_t r = 0; r < context.size(); ++r) {
    if (context[r] == 0) open = false;
    for (int64_t start = 0; start < context[r];) {
      if (!open) {
        chunks.emplace_back();
        used = 0;
        open = true;
      }
      const int64_t rest = context[r] - start;
      int64_t length = rest;
      if (used + rest > workspace) {
        open = false;
        length = (rest - 1) / page * page;
        while (used + length > workspace) length -= page;
      }
      if (length > 0) chunks.back().push_back({static_cast<int64_t>(r), start, start + length});
      start += length;
      used += length;
    }
  }
  return chunks;
}

TEST(PlanProperty, VllmModeIsTheGreedyPlan) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Case c = random_case(seed);
    c.options.mode = PlanMode::kVllm;
    c.options.invariant = false;
    c.options.workspace_tokens = std::max<int64_t>(c.options.workspace_tokens, c.batch.block_size);
    c.device.row_alignment_rows = 1;
    const Plan plan = make(c);
    std::vector<std::vector<std::array<int64_t, 3>>> chunks;
    for (const Pass& pass : plan.passes) {
      if (pass.kind != PassKind::kContext) continue;
      chunks.emplace_back();
      for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
        const Span& span = plan.spans[static_cast<size_t>(s)];
        chunks.back().push_back({span.request, span.key_begin, span.key_end});
        EXPECT_EQ(span.continuation, span.key_begin > 0);
        EXPECT_EQ(span.key_begin % c.batch.block_size, 0);
      }
    }
    EXPECT_EQ(chunks, greedy_chunks(c.batch.context_lens, c.options.workspace_tokens, c.batch.block_size));
  }
}

}  // namespace
}  // namespace mlaprefill
