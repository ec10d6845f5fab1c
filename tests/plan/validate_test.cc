// Every refusal of make_plan: its code and its whole message.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "plan/batch.h"

namespace mlaprefill {
namespace {

using testing::small_dims;

constexpr int32_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

/// A correct batch of 3 requests that a test then breaks: new tokens 4, 0, 7, context 20, 0, 32, block 16.
class Validate : public ::testing::Test {
 protected:
  RaggedBatch batch() const {
    RaggedBatch view;
    view.query_start_loc = query_start_loc;
    view.context_lens = context_lens;
    view.query_lens = query_lens;
    view.seq_lens = seq_lens;
    view.block_table = table;
    view.block_size = block_size;
    view.num_cache_blocks = num_cache_blocks;
    return view;
  }

  Status plan() const { return make_plan(dims, batch(), options, device).status(); }

  void give_block_table() { table = {ids.data(), 3, 2, 3}; }

  void expect_refused(StatusCode code, const std::string& message) const {
    const Status status = plan();
    EXPECT_EQ(to_string(status.code()), to_string(code));
    EXPECT_EQ(status.message(), message);
  }

  MlaDims dims = small_dims();
  std::vector<int32_t> query_start_loc{0, 4, 4, 11};
  std::vector<int32_t> context_lens{20, 0, 32};
  std::vector<int32_t> query_lens;
  std::vector<int32_t> seq_lens;
  std::vector<int32_t> ids{5, 0, -7, -7, kMaxInt32, -7, 9, 3};  // rows of 2 used columns, 3 apart
  BlockTable table;
  int32_t block_size = 16;
  int64_t num_cache_blocks = -1;
  PlanOptions options;
  DeviceProperties device;
};

TEST_F(Validate, TheUnbrokenBatchIsAccepted) {
  query_lens = {4, 0, 6};
  seq_lens = {24, 0, 38};
  give_block_table();
  num_cache_blocks = 10;
  EXPECT_EQ(plan().message(), "");
  EXPECT_TRUE(plan().ok());
}

TEST_F(Validate, QueryStartLoc) {
  query_start_loc = {};
  expect_refused(StatusCode::kInvalidArgument, "query_start_loc: must have at least 1 entry, got 0");
  query_start_loc = {1, 4, 4, 11};
  expect_refused(StatusCode::kInvalidArgument, "query_start_loc[0]: must be 0, got 1");
  query_start_loc = {0, 17, 17, 12};
  expect_refused(StatusCode::kInvalidArgument,
                 "query_start_loc[3]: must be >= query_start_loc[2] = 17, got 12");
  query_start_loc = {0, -3, 4, 11};
  expect_refused(StatusCode::kInvalidArgument,
                 "query_start_loc[1]: must be >= query_start_loc[0] = 0, got -3");
  query_start_loc = {0, kMaxInt32, std::numeric_limits<int32_t>::min(), 11};
  expect_refused(StatusCode::kInvalidArgument,
                 "query_start_loc[2]: must be >= query_start_loc[1] = 2147483647, got -2147483648");
}

TEST_F(Validate, BatchCountsThatDiffer) {
  query_start_loc = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  context_lens = std::vector<int32_t>(7, 0);
  table = {ids.data(), 8, 0, 0};
  expect_refused(StatusCode::kInvalidArgument,
                 "context_lens: must have 8 entries, one less than query_start_loc, got 7");
  context_lens = std::vector<int32_t>(8, 0);
  table.rows = 9;
  expect_refused(StatusCode::kInvalidArgument, "block_table.rows: must be 8, one for each request, got 9");
  table.rows = 7;
  expect_refused(StatusCode::kInvalidArgument, "block_table.rows: must be 8, one for each request, got 7");
  table.rows = 8;
  query_lens = {1};
  expect_refused(StatusCode::kInvalidArgument,
                 "query_lens: must have 8 entries, one less than query_start_loc, got 1");
  query_lens = {};
  seq_lens = {1, 1};
  expect_refused(StatusCode::kInvalidArgument,
                 "seq_lens: must have 8 entries, one less than query_start_loc, got 2");
}

TEST_F(Validate, QueryLens) {
  query_lens = {4, 0, 8};
  expect_refused(StatusCode::kInvalidArgument,
                 "query_lens[2]: must be <= query_start_loc[3] - query_start_loc[2] = 7, got 8");
  query_lens = {4, -1, 7};
  expect_refused(StatusCode::kInvalidArgument, "query_lens[1]: must be >= 0, got -1");
}

TEST_F(Validate, ContextLens) {
  context_lens = {20, -1, 32};
  expect_refused(StatusCode::kInvalidArgument, "context_lens[1]: must be >= 0, got -1");
  context_lens = {20, 0, kMaxInt32 - 6};
  expect_refused(StatusCode::kLimitExceeded,
                 "context_lens[2]: must be <= 2147483647 - 7 new tokens, got 2147483641");
  context_lens = {20, 0, kMaxInt32 - 7};
  EXPECT_TRUE(plan().ok()) << plan().message();
}

TEST_F(Validate, ContextIsNotTheWholeLength) {
  // 5 new tokens of 105: a caller that passes 105 as the context counts the new ones twice.
  query_start_loc = {0, 5};
  context_lens = {105};
  seq_lens = {105};
  expect_refused(StatusCode::kInvalidArgument,
                 "seq_lens[0]: must be context_lens[0] + new tokens = 105 + 5 = 110, got 105");
  context_lens = {100};
  EXPECT_TRUE(plan().ok());
}

TEST_F(Validate, BlockSize) {
  block_size = -16;
  expect_refused(StatusCode::kInvalidArgument, "block_size: must be >= 0, got -16");
  block_size = 0;
  EXPECT_TRUE(plan().ok());
  options.mode = PlanMode::kVllm;
  expect_refused(StatusCode::kInvalidArgument, "block_size: must be >= 1 in mode vllm, got 0");
  options.mode = PlanMode::kEvenSplit;
  expect_refused(StatusCode::kInvalidArgument, "block_size: must be >= 1 in mode even_split, got 0");
  give_block_table();
  expect_refused(StatusCode::kInvalidArgument, "block_size: must be >= 1 with a block table, got 0");
  block_size = (1 << 20) + 1;
  expect_refused(StatusCode::kLimitExceeded, "block_size: must be <= 1048576, got 1048577");
}

TEST_F(Validate, BlockTableShape) {
  give_block_table();
  table.cols = -1;
  expect_refused(StatusCode::kInvalidArgument, "block_table.cols: must be >= 0, got -1");
  give_block_table();
  table.row_stride = 1;
  expect_refused(StatusCode::kInvalidArgument,
                 "block_table.row_stride: must be >= block_table.cols = 2, got 1");
  table.row_stride = kMaxInt64;
  expect_refused(StatusCode::kLimitExceeded,
                 "block_table.row_stride: must be <= 2147483648, got 9223372036854775807");
  give_block_table();
  table.data = nullptr;
  expect_refused(StatusCode::kInvalidArgument,
                 "block_table.data: must not be null with context_lens[0] = 20, got null");
}

TEST_F(Validate, ContextBeyondTheBlockTable) {
  give_block_table();
  context_lens[2] = 33;
  expect_refused(StatusCode::kOutOfRange,
                 "context_lens[2]: must fit block_table.cols = 2 blocks of 16 tokens, got 33");
  // A table of 1,024 columns of 16 tokens, and a last row that needs 1,051 of them.
  std::vector<int32_t> wide(998 * 1024, 0);
  query_start_loc.assign(999, 0);
  for (size_t i = 1; i < query_start_loc.size(); ++i) query_start_loc[i] = static_cast<int32_t>(i);
  context_lens.assign(998, 16);
  context_lens[997] = 15967 + 834;
  table = {wide.data(), 998, 1024, 1024};
  expect_refused(StatusCode::kOutOfRange,
                 "context_lens[997]: must fit block_table.cols = 1024 blocks of 16 tokens, got 16801");
  context_lens[997] = 1024 * 16;
  EXPECT_TRUE(plan().ok()) << plan().message();
  context_lens[997] = kMaxInt32 - 1;
  expect_refused(StatusCode::kOutOfRange,
                 "context_lens[997]: must fit block_table.cols = 1024 blocks of 16 tokens, got 2147483646");
}

TEST_F(Validate, UsedBlockIds) {
  give_block_table();
  ids[1] = -1;
  expect_refused(StatusCode::kOutOfRange, "block_table[0][1]: must be >= 0, got -1");
  ids[1] = 0;
  num_cache_blocks = 9;
  expect_refused(StatusCode::kOutOfRange, "block_table[2][0]: must be < num_cache_blocks = 9, got 9");
  num_cache_blocks = 0;
  expect_refused(StatusCode::kOutOfRange, "block_table[0][0]: must be < num_cache_blocks = 0, got 5");
  num_cache_blocks = kMaxInt64;
  EXPECT_TRUE(plan().ok()) << plan().message();
}

TEST_F(Validate, UnusedColumnsAreNeverRead) {
  give_block_table();
  num_cache_blocks = 10;
  Result<Plan> plan = make_plan(dims, batch(), options, device);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->blocks, (std::vector<int32_t>{5, 0, 9, 3}));
  EXPECT_EQ(plan->block_begin, (std::vector<int64_t>{0, 2, 2, 4}));
  EXPECT_EQ(plan->highest_block, 9);
  EXPECT_EQ(plan->longest_context_tokens, *std::max_element(context_lens.begin(), context_lens.end()));
  for (int32_t garbage : {-1, kMaxInt32, 10, 12345678}) {
    ids[2] = ids[3] = ids[4] = ids[5] = garbage;
    const Result<Plan> again = make_plan(dims, batch(), options, device);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(fingerprint(again.value()), fingerprint(plan.value()));
  }
}

TEST_F(Validate, BlocksOfARequestWithoutNewTokensAreReadOnlyWhereAPassHoldsThem) {
  query_start_loc = {0, 0, 0, 7};
  give_block_table();
  ids[0] = -1;
  const Result<Plan> bridge = make_plan(dims, batch(), options, device);
  ASSERT_TRUE(bridge.ok()) << bridge.status().message();
  EXPECT_EQ(bridge->blocks, (std::vector<int32_t>{9, 3}));
  options.mode = PlanMode::kVllm;
  expect_refused(StatusCode::kOutOfRange, "block_table[0][0]: must be >= 0, got -1");
}

TEST_F(Validate, AnIdleBatchNeedsNoBlock) {
  query_start_loc.assign(17, 0);
  for (size_t i = 0; i < query_start_loc.size(); ++i) query_start_loc[i] = static_cast<int32_t>(i);
  context_lens.assign(16, 0);
  table = {nullptr, 16, 0, 0};
  num_cache_blocks = 0;
  EXPECT_TRUE(plan().ok()) << plan().message();
}

TEST_F(Validate, NoRequests) {
  query_start_loc = {0};
  context_lens = {};
  for (PlanMode mode : testing::kAllModes) {
    options.mode = mode;
    const Result<Plan> plan = make_plan(dims, batch(), options, device);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_TRUE(plan->passes.empty());
    EXPECT_EQ(plan->verdict, Verdict::kEmpty);
  }
}

TEST_F(Validate, Limits) {
  options.max_requests = 2;
  expect_refused(StatusCode::kLimitExceeded,
                 "query_start_loc: must have at most max_requests + 1 = 3 entries, got 4");
  options = {};
  options.max_query_tokens = 10;
  expect_refused(StatusCode::kLimitExceeded, "query_start_loc[3]: must be <= max_query_tokens = 10, got 11");
  options = {};
  options.max_context_tokens_per_request = 31;
  expect_refused(StatusCode::kLimitExceeded,
                 "context_lens[2]: must be <= max_context_tokens_per_request = 31, got 32");
}

TEST_F(Validate, Options) {
  options.workspace_tokens = 0;
  expect_refused(StatusCode::kInvalidArgument, "workspace_tokens: must be >= 1, got 0");
  options = {};
  options.max_requests = -1;
  expect_refused(StatusCode::kInvalidArgument, "max_requests: must be >= 0, got -1");
  options = {};
  options.working_dtype = DType::kU8;
  expect_refused(StatusCode::kInvalidArgument, "working_dtype: must be bf16, f16 or f32, got u8");
  options = {};
  options.mode = static_cast<PlanMode>(9);
  expect_refused(StatusCode::kInvalidArgument,
                 "mode: must be bridge, min_continuation, vllm or even_split, got 9");
  options = {};
  options.workspace_tokens = kMaxInt64;
  EXPECT_TRUE(plan().ok()) << plan().message();
}

TEST_F(Validate, Device) {
  device.num_processors = 0;
  expect_refused(StatusCode::kInvalidArgument, "num_processors: must be >= 1, got 0");
  device = {};
  device.query_tile_tokens = -1;
  expect_refused(StatusCode::kInvalidArgument, "query_tile_tokens: must be >= 0, got -1");
  device = {};
  device.key_tile_tokens = 0;
  expect_refused(StatusCode::kInvalidArgument, "key_tile_tokens: must be >= 1, got 0");
  device = {};
  device.row_alignment_rows = 1 << 17;
  expect_refused(StatusCode::kLimitExceeded, "row_alignment_rows: must be <= 65536, got 131072");
  device.row_alignment_rows = 128;
  options.workspace_tokens = 127;
  expect_refused(StatusCode::kLimitExceeded,
                 "workspace_tokens: must be >= 128 (row_alignment_rows), got 127");
}

TEST_F(Validate, Dims) {
  dims.num_heads = 0;
  expect_refused(StatusCode::kInvalidArgument, "num_heads: must be >= 1, got 0");
}

TEST_F(Validate, TooManyPassesAreRefusedNotBuilt) {
  query_start_loc = {0, 1};
  context_lens = {kMaxInt32 - 1};
  options.workspace_tokens = 1;
  expect_refused(StatusCode::kLimitExceeded,
                 "workspace_tokens: must be >= 512 for 2147483647 tokens in at most 4194304 passes, got 1");
  block_size = 1;
  options.mode = PlanMode::kVllm;
  expect_refused(StatusCode::kLimitExceeded,
                 "workspace_tokens: must give at most 4194304 spans in mode vllm, got 1 of 2147483646");
  options.mode = PlanMode::kEvenSplit;
  expect_refused(StatusCode::kLimitExceeded,
                 "workspace_tokens: must give at most 4194304 spans in mode even_split, got 1 of 2147483646");
}

TEST_F(Validate, TooManyTilesAreRefusedNotBuilt) {
  query_start_loc = {0, kMaxInt32};
  context_lens = {0};
  device.query_tile_tokens = 1;
  expect_refused(StatusCode::kLimitExceeded, "query_tile_tokens: must give at most 16777216 tiles, got 1");
}

TEST_F(Validate, LengthsNear32BitsAreCountedIn64) {
  // 1,024 requests of 2^31 - 1 keys: 2^41 rows, and more visible pairs than 32 bits hold.
  const int32_t requests = 1024;
  query_start_loc.assign(requests + 1, 0);
  for (int32_t i = 1; i <= requests; ++i) query_start_loc[static_cast<size_t>(i)] = i;
  context_lens.assign(requests, kMaxInt32 - 1);
  options.workspace_tokens = int64_t{1} << 40;
  const Result<Plan> plan = make_plan(dims, batch(), options, device);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->cost.expanded_rows, int64_t{requests} * kMaxInt32);
  EXPECT_EQ(plan->cost.visible_pairs, int64_t{requests} * kMaxInt32);
  EXPECT_EQ(plan->passes.size(), 2U);
}

TEST(ParsePlanMode, KnowsEveryName) {
  for (PlanMode mode : testing::kAllModes) {
    const Result<PlanMode> parsed = parse_plan_mode(to_string(mode));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed.value(), mode);
  }
  EXPECT_EQ(parse_plan_mode("Bridge").status().message(),
            "mode: must be bridge, min_continuation, vllm or even_split, got Bridge");
}

}  // namespace
}  // namespace mlaprefill
