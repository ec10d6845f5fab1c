// What each mode cuts, on cases small enough to check by hand.
#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <vector>

#include "core/checked.h"
#include "plan/batch.h"

namespace mlaprefill {
namespace {

using testing::Batch;
using testing::small_dims;
using testing::with_mode;

/// (request, key_begin, key_end, continuation) by pass.
using Piece = std::tuple<int32_t, int64_t, int64_t, bool>;
using Pieces = std::vector<std::vector<Piece>>;

Pieces pieces(const Plan& plan, PassKind kind) {
  Pieces all;
  for (const Pass& pass : plan.passes) {
    if (pass.kind != kind) continue;
    all.emplace_back();
    for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
      const Span& span = plan.spans[static_cast<size_t>(s)];
      all.back().emplace_back(span.request, span.key_begin, span.key_end, span.continuation);
    }
  }
  return all;
}

Plan make(const Batch& batch, const PlanOptions& options, const DeviceProperties& device = {}) {
  Result<Plan> plan = make_plan(small_dims(), batch.view(), options, device);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? plan.value() : Plan{};
}

TEST(Bridge, OnePassWhenEverythingFits) {
  const Plan plan = make(Batch({4, 0, 7}, {20, 0, 32}), with_mode(PlanMode::kBridge, 1024));
  EXPECT_EQ(pieces(plan, PassKind::kJoint), (Pieces{{{0, 0, 24, false}, {2, 0, 39, false}}}));
  EXPECT_EQ(plan.passes[0].rows, 63);
  EXPECT_TRUE(plan.passes[0].all_rows_active);
  EXPECT_TRUE(plan.spans[0].first && plan.spans[0].last);
  EXPECT_EQ(plan.spans[1].row_begin, 24);
  EXPECT_EQ(plan.verdict, Verdict::kMixed);
}

TEST(Bridge, RequestsWithoutContextOrQueriesNeverCloseAPass) {
  const Plan plan = make(Batch({1, 5, 0, 2, 0}, {9, 0, 30, 6, 0}), with_mode(PlanMode::kBridge, 12));
  EXPECT_EQ(pieces(plan, PassKind::kJoint),
            (Pieces{{{0, 0, 10, false}, {1, 0, 2, false}}, {{1, 2, 5, true}, {3, 0, 8, false}}}));
}

TEST(Bridge, LongRequestIsSplitNotRefused) {
  // 40 requests of about 2,100 keys and a workspace of 15,360: 84,252 keys never go into one pass.
  std::vector<int32_t> query(40, 6);
  std::vector<int32_t> context(40, 2100);
  context[0] = 2112;
  const Plan plan = make(Batch(query, context), with_mode(PlanMode::kBridge, 15360));
  EXPECT_EQ(plan.cost.expanded_rows, 84252);
  EXPECT_EQ(plan.passes.size(), 6U);
  for (const Pass& pass : plan.passes) EXPECT_LE(pass.rows, 15360);

  const Plan one = make(Batch({1}, {131071}), with_mode(PlanMode::kBridge, 65536));
  EXPECT_EQ(pieces(one, PassKind::kJoint), (Pieces{{{0, 0, 65536, false}}, {{0, 65536, 131072, true}}}));
}

TEST(Bridge, EmptyBatchesHaveNoPass) {
  EXPECT_TRUE(make(Batch({}, {}), {}).passes.empty());
  EXPECT_EQ(make(Batch({}, {}), {}).verdict, Verdict::kEmpty);
  const Plan plan = make(Batch({0, 0}, {5, 0}), {});
  EXPECT_TRUE(plan.passes.empty());
  EXPECT_EQ(plan.verdict, Verdict::kEmpty);
  EXPECT_EQ(plan.workspace.total_bytes, 0);
}

TEST(Bridge, PaddingBetweenRequestsIsNotPlanned) {
  Batch batch({3, 2}, {0, 4});
  batch.query_start_loc = {0, 8, 16};
  RaggedBatch view = batch.view();
  view.query_lens = batch.query_lens;
  const Result<Plan> plan = make_plan(small_dims(), view);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->num_query_rows, 16);
  EXPECT_EQ(plan->cost.expanded_rows, 9);
  EXPECT_EQ(pieces(plan.value(), PassKind::kJoint), (Pieces{{{0, 0, 3, false}, {1, 0, 6, false}}}));
}

TEST(Bridge, AlignedRowsStartEverySpanAtAMultiple) {
  DeviceProperties device;
  device.row_alignment_rows = 16;
  const Plan plan = make(Batch({3, 20, 1}, {0, 0, 30}), with_mode(PlanMode::kBridge, 70), device);
  for (const Span& span : plan.spans) EXPECT_EQ(span.row_begin % 16, 0);
  EXPECT_EQ(pieces(plan, PassKind::kJoint),
            (Pieces{{{0, 0, 3, false}, {1, 0, 20, false}, {2, 0, 16, false}}, {{2, 16, 31, true}}}));
  EXPECT_EQ(plan.passes[0].rows, 64);
}

TEST(Invariant, CutsAreMultiplesOfTheKeyTileOfTheRequest) {
  PlanOptions options = with_mode(PlanMode::kBridge, 100);
  options.invariant = true;
  const Plan plan = make(Batch({30, 1}, {0, 200}), options);
  EXPECT_EQ(pieces(plan, PassKind::kJoint),
            (Pieces{{{0, 0, 30, false}, {1, 0, 64, false}}, {{1, 64, 128, true}}, {{1, 128, 201, true}}}));
}

TEST(Invariant, RefusesAWorkspaceBelowOneKeyTile) {
  PlanOptions options = with_mode(PlanMode::kBridge, 63);
  options.invariant = true;
  const Batch batch({1}, {1});
  const Result<Plan> plan = make_plan(small_dims(), batch.view(), options);
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().code(), StatusCode::kLimitExceeded);
  EXPECT_EQ(plan.status().message(),
            "workspace_tokens: must be >= 64 (a key tile, as `invariant` cuts only there), got 63");
}

TEST(MinContinuation, KeepsRequestsWhole) {
  const Batch batch({1, 1, 1}, {767, 511, 511});
  EXPECT_EQ(pieces(make(batch, with_mode(PlanMode::kBridge, 1024)), PassKind::kJoint),
            (Pieces{{{0, 0, 768, false}, {1, 0, 256, false}}, {{1, 256, 512, true}, {2, 0, 512, false}}}));
  EXPECT_EQ(pieces(make(batch, with_mode(PlanMode::kMinContinuation, 1024)), PassKind::kJoint),
            (Pieces{{{0, 0, 768, false}}, {{1, 0, 512, false}, {2, 0, 512, false}}}));
}

TEST(Vllm, TailIsSplitAtAPage) {
  const Plan plan = make(Batch({1, 1, 1}, {768, 512, 512}, 64), with_mode(PlanMode::kVllm, 1024));
  EXPECT_EQ(pieces(plan, PassKind::kContext),
            (Pieces{{{0, 0, 768, false}, {1, 0, 256, false}}, {{1, 256, 512, true}, {2, 0, 512, false}}}));
  EXPECT_EQ(pieces(plan, PassKind::kNew),
            (Pieces{{{0, 768, 769, false}, {1, 512, 513, false}, {2, 512, 513, false}}}));
}

TEST(Vllm, ARequestWithoutContextClosesTheChunk) {
  const Plan plan = make(Batch({1, 1, 1, 1}, {64, 0, 64, 0}), with_mode(PlanMode::kVllm, 1024));
  EXPECT_EQ(pieces(plan, PassKind::kContext), (Pieces{{{0, 0, 64, false}}, {{2, 0, 64, false}}}));
  EXPECT_EQ(plan.passes.back().kind, PassKind::kNew);
  EXPECT_EQ(plan.passes.back().rows, 4);
}

TEST(Vllm, NoContextIsOnePassOfNewTokens) {
  const Plan plan = make(Batch({3, 0, 2}, {0, 0, 0}), with_mode(PlanMode::kVllm, 16));
  EXPECT_TRUE(pieces(plan, PassKind::kContext).empty());
  EXPECT_EQ(pieces(plan, PassKind::kNew), (Pieces{{{0, 0, 3, false}, {2, 0, 2, false}}}));
  EXPECT_TRUE(plan.spans[0].first && plan.spans[0].last);
}

TEST(Vllm, ARemainderOfAtMostAPageIsNeverSplit) {
  // 56 rows are free after the first request; 16 keys of block 16 leave no whole page before the last key.
  const Plan plan = make(Batch({1, 1, 1}, {56, 16, 17}, 16), with_mode(PlanMode::kVllm, 64));
  EXPECT_EQ(pieces(plan, PassKind::kContext),
            (Pieces{{{0, 0, 56, false}}, {{1, 0, 16, false}, {2, 0, 17, false}}}));
}

TEST(Vllm, EveryPieceOfALongRequestStartsAtAPage) {
  const Plan plan = make(Batch({1}, {2500}, 16), with_mode(PlanMode::kVllm, 1000));
  EXPECT_EQ(pieces(plan, PassKind::kContext),
            (Pieces{{{0, 0, 992, false}}, {{0, 992, 1984, true}}, {{0, 1984, 2500, true}}}));
  EXPECT_TRUE(plan.spans[0].first && !plan.spans[0].last);
  EXPECT_TRUE(!plan.spans[2].first && !plan.spans[2].last);
  EXPECT_TRUE(plan.spans[3].last && !plan.spans[3].continuation);
}

TEST(Vllm, ChunksCoverRequestsWithoutQueriesAndSaySo) {
  const Plan plan = make(Batch({1, 0, 1}, {64, 64, 0}), with_mode(PlanMode::kVllm, 64));
  EXPECT_EQ(pieces(plan, PassKind::kContext), (Pieces{{{0, 0, 64, false}}, {{1, 0, 64, false}}}));
  EXPECT_TRUE(plan.passes[0].all_rows_active);
  EXPECT_FALSE(plan.passes[1].all_rows_active);
  EXPECT_TRUE(plan.passes[2].all_rows_active);
}

TEST(Vllm, AWorkspaceBelowAPageIsRaisedToOne) {
  const Plan plan = make(Batch({1}, {40}, 32), with_mode(PlanMode::kVllm, 8));
  EXPECT_EQ(pieces(plan, PassKind::kContext), (Pieces{{{0, 0, 32, false}}, {{0, 32, 40, true}}}));
}

TEST(EvenSplit, EveryChunkNamesEveryRequest) {
  const Plan plan = make(Batch({1, 1, 1}, {100, 40, 0}, 16), with_mode(PlanMode::kEvenSplit, 128));
  EXPECT_EQ(pieces(plan, PassKind::kContext),
            (Pieces{{{0, 0, 64, false}, {1, 0, 40, false}, {2, 0, 0, false}},
                    {{0, 64, 100, true}, {1, 40, 40, true}, {2, 0, 0, false}}}));
  EXPECT_FALSE(plan.passes[0].all_rows_active);
  EXPECT_EQ(plan.passes[0].rows, 104);
}

TEST(EvenSplit, OneLongRequestAmongShortOnesTakesManyChunks) {
  // The case that shows the older plan's cost: 1 x 60k and 31 x 16 tokens.
  std::vector<int32_t> context(32, 16);
  context[0] = 60000;
  const Batch batch(std::vector<int32_t>(32, 1), context, 64);
  EXPECT_EQ(pieces(make(batch, with_mode(PlanMode::kEvenSplit, 65536)), PassKind::kContext).size(), 30U);
  EXPECT_EQ(pieces(make(batch, with_mode(PlanMode::kVllm, 65536)), PassKind::kContext).size(), 1U);
  EXPECT_EQ(make(batch, with_mode(PlanMode::kBridge, 65536)).passes.size(), 1U);
}

TEST(Bridging, FarFewerPassesThanGreedyWhenManyRequestsHaveNoContext) {
  // 32 requests, 40% of them without context: greedy closes a chunk at every run of those.
  const uint64_t seed = 1;
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  int64_t bridge_passes = 0;
  int64_t greedy_chunks = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<int32_t> context(32);
    for (int32_t& length : context) {
      length = random() % 10 < 4 ? 0 : static_cast<int32_t>(random() % 20000);
    }
    const Batch batch(std::vector<int32_t>(32, 1), context, 64);
    const Plan bridge = make(batch, with_mode(PlanMode::kBridge, 65536));
    EXPECT_EQ(static_cast<int64_t>(bridge.passes.size()), ceil_div(batch.active_keys(), 65536));
    bridge_passes += static_cast<int64_t>(bridge.passes.size());
    greedy_chunks += static_cast<int64_t>(make(batch, with_mode(PlanMode::kVllm, 65536)).passes.size()) - 1;
  }
  EXPECT_GT(greedy_chunks, 2 * bridge_passes);
}

TEST(Strict, MixedBatchIsRefusedByRow) {
  PlanOptions options;
  options.strict = true;
  const Batch batch({4, 0, 7, 0, 1}, {0, 5, 0, 0, 0});
  const Result<Plan> refused = make_plan(small_dims(), batch.view(), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInactiveRows);
  EXPECT_EQ(refused.status().message(),
            "query_lens: strict requires all rows active or all empty, got empty rows [1, 3] of 5");
  options.strict = false;
  EXPECT_EQ(make(batch, options).verdict, Verdict::kMixed);
}

TEST(Strict, LongListsOfRowsAreCut) {
  std::vector<int32_t> query(100, 0);
  query[0] = 1;
  PlanOptions options;
  options.strict = true;
  const Batch batch(query, std::vector<int32_t>(100, 0));
  const Result<Plan> refused = make_plan(small_dims(), batch.view(), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(),
            "query_lens: strict requires all rows active or all empty, got empty rows "
            "[1, 2, 3, 4, 5, 6, 7, 8, ... 91 more] of 100");
}

TEST(Strict, PassWithAnInactiveRowIsRefused) {
  PlanOptions options = with_mode(PlanMode::kEvenSplit, 32);
  options.strict = true;
  const Batch batch({1, 1}, {40, 5});
  const Result<Plan> refused = make_plan(small_dims(), batch.view(), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInactiveRows);
  EXPECT_EQ(refused.status().message(),
            "passes[1]: strict requires a query and a key in every row, got inactive rows [1] of 2");
  options.strict = false;
  EXPECT_EQ(make(batch, options).passes.size(), 4U);
}

TEST(Strict, ActiveAndEmptyBatchesPass) {
  PlanOptions options = with_mode(PlanMode::kVllm, 32);
  options.strict = true;
  EXPECT_EQ(make(Batch({1, 1}, {40, 5}), options).verdict, Verdict::kActive);
  EXPECT_EQ(make(Batch({0, 0}, {0, 0}), options).verdict, Verdict::kEmpty);
  options.mode = PlanMode::kBridge;
  EXPECT_EQ(make(Batch({0, 0}, {3, 0}), options).verdict, Verdict::kEmpty);
}

}  // namespace
}  // namespace mlaprefill
