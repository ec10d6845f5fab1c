// Sizes: the layout of a plan, the bound before any plan, and plans of one shape for captured graphs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "plan/batch.h"
#include "plan/metadata_size.h"

namespace mlaprefill {
namespace {

using testing::Batch;
using testing::kAllModes;
using testing::random_batch;
using testing::small_dims;
using testing::with_mode;

Plan make(const Batch& batch, const PlanOptions& options, const DeviceProperties& device = {},
          const MlaDims& dims = small_dims()) {
  Result<Plan> plan = make_plan(dims, batch.view(), options, device);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? plan.value() : Plan{};
}

TEST(Workspace, OnePassNeedsNoState) {
  const Plan plan = make(Batch({4}, {60}), with_mode(PlanMode::kBridge, 64));
  EXPECT_EQ(plan.workspace.metadata_bytes, 0);
  EXPECT_EQ(plan.workspace.expanded_offset_bytes, 64 * (64 + 16) * 2);
  EXPECT_EQ(plan.workspace.total_bytes, 64 * (64 + 16) * 2 + 64 * 2 * (32 + 32) * 2);
}

TEST(Workspace, RegionsAreDisjointAndAligned) {
  PlanOptions options = with_mode(PlanMode::kBridge, 33);
  options.working_dtype = DType::kF32;
  DeviceProperties device;
  device.num_processors = 4;
  device.query_tile_tokens = 8;
  device.key_tile_tokens = 4;
  const Plan plan = make(Batch({5, 3}, {60, 9}), options, device);
  const WorkspaceLayout& at = plan.workspace;
  const int64_t sizes[] = {at.metadata_bytes, 33 * (64 + 16) * 4, 33 * 2 * (32 + 32) * 4, 8 * 2 * 32 * 4,
                           2 * 8 * 4,         2 * 8 * 4,          6 * 8 * (32 + 8) * 4};
  const int64_t offsets[] = {at.metadata_offset_bytes,  at.latent_offset_bytes,    at.expanded_offset_bytes,
                             at.state_out_offset_bytes, at.state_max_offset_bytes, at.state_sum_offset_bytes,
                             at.partials_offset_bytes};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    EXPECT_EQ(offsets[i] % 256, 0);
    EXPECT_LE(offsets[i] + sizes[i], i + 1 < std::size(offsets) ? offsets[i + 1] : at.total_bytes);
  }
  const auto count = [](const auto& records) { return static_cast<int64_t>(records.size()); };
  EXPECT_EQ(at.max_kv_splits, 6);
  const Checked64 metadata_bytes = metadata_size_bytes(
      {count(plan.passes), count(plan.spans), count(plan.tiles), count(plan.blocks), at.max_kv_splits});
  EXPECT_EQ(at.metadata_bytes, round_up(metadata_bytes.value(), 256));
}

TEST(Workspace, LongKeysReserveRoomForPartialResults) {
  DeviceProperties device;
  device.num_processors = 132;
  device.query_tile_tokens = 256;
  device.key_tile_tokens = 128;
  const auto layout = [&](const Batch& batch, bool invariant) {
    PlanOptions options = with_mode(PlanMode::kBridge, 4096);
    options.invariant = invariant;
    return make(batch, options, device).workspace;
  };
  const WorkspaceLayout long_keys = layout(Batch({4}, {1000}), false);
  EXPECT_EQ(long_keys.max_kv_splits, 198);
  EXPECT_EQ(long_keys.total_bytes - long_keys.partials_offset_bytes, 198 * 256 * (32 + 8) * 4);
  EXPECT_EQ(layout(Batch({4}, {800}), false).max_kv_splits, 0);
  const WorkspaceLayout invariant = layout(Batch({4}, {1000}), true);
  EXPECT_EQ(invariant.max_kv_splits, 0);
  EXPECT_EQ(invariant.total_bytes, invariant.partials_offset_bytes);
}

TEST(Workspace, BytesGrowWithTheCapAndStaySmallForASmallOne) {
  // 131,072 keys of 128 heads: 5 GiB of expanded keys and values at a cap of 64k rows of 128 + 128 dims.
  const MlaDims dims{128, 512, 128, 64, 128, 0.1};
  const Batch batch({1}, {131071});
  int64_t previous = 0;
  for (int64_t cap = 1024; cap <= 65536; cap *= 2) {
    const int64_t bytes = make(batch, with_mode(PlanMode::kBridge, cap), {}, dims).workspace.total_bytes;
    EXPECT_GT(bytes, previous);
    EXPECT_LE(bytes, cap * (128 * 256 + 576) * 2 + 128 * (128 + 2) * 4 + 5 * 256);
    previous = bytes;
  }
}

TEST(Workspace, StateFollowsRealTokensNotRowsTimesPaddedQueries) {
  // 16,384 requests of one token and 64 heads: max and sum are 4 MiB each, not 2 GiB.
  const MlaDims dims{64, 512, 128, 64, 128, 0.1};
  const Batch batch(std::vector<int32_t>(16384, 1), std::vector<int32_t>(16384, 7));
  const WorkspaceLayout layout = make(batch, with_mode(PlanMode::kBridge, 1001), {}, dims).workspace;
  EXPECT_EQ(layout.state_sum_offset_bytes - layout.state_max_offset_bytes, 4 << 20);
  EXPECT_EQ(layout.total_bytes - layout.state_sum_offset_bytes, 4 << 20);
}

TEST(Workspace, SizesBeyond63BitsAreRefused) {
  const MlaDims dims{256, 1024, 256, 128, 256, 0.1};
  PlanOptions options = with_mode(PlanMode::kBridge, std::numeric_limits<int64_t>::max());
  options.max_requests = int64_t{1} << 30;
  PlanBounds bounds{.max_requests = 1, .max_query_rows = 1};
  const Result<int64_t> bytes = workspace_upper_bound_bytes(dims, options, {}, bounds);
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.status().code(), StatusCode::kLimitExceeded);
  EXPECT_EQ(
      bytes.status().message(),
      "workspace: must be < 2^63 bytes, got more for passes of 9223372036854775807 rows, 256 heads and 1 "
      "query rows");
}

TEST(UpperBound, RefusesBadBounds) {
  const auto refusal = [](const PlanOptions& options, const DeviceProperties& device,
                          const PlanBounds& bounds) {
    return workspace_upper_bound_bytes(small_dims(), options, device, bounds).status().message();
  };
  PlanBounds bounds{.max_requests = -1};
  EXPECT_EQ(refusal({}, {}, bounds), "bounds.max_requests: must be >= 0, got -1");
  bounds = {.max_requests = 1, .max_query_rows = int64_t{1} << 31};
  EXPECT_EQ(refusal({}, {}, bounds), "bounds.max_query_rows: must be <= 2147483647, got 2147483648");
  bounds = {.max_requests = 1, .max_query_rows = 1};
  EXPECT_EQ(refusal(with_mode(PlanMode::kVllm, 64), {}, bounds), "bounds.block_size: must be >= 1, got 0");
  DeviceProperties tiled;
  tiled.query_tile_tokens = 64;
  EXPECT_EQ(refusal({}, tiled, bounds), "bounds.max_passes: must be >= 1, got 0");
  bounds.max_new_tokens_pass_rows = -5;
  EXPECT_EQ(refusal({}, {}, bounds), "bounds.max_new_tokens_pass_rows: must be >= 0, got -5");
}

TEST(UpperBound, HoldsForEveryRandomPlan) {
  for (uint64_t seed = 0; seed < 10000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Batch batch = random_batch(random);
    DeviceProperties device;
    device.key_tile_tokens = 16;
    device.query_tile_tokens = static_cast<int32_t>(random() % 3 * 8);
    device.row_alignment_rows = random() % 2 == 0 ? 1 : 12;
    device.num_processors = static_cast<int32_t>(1 + random() % 200);
    PlanOptions options = with_mode(kAllModes[random() % 4], 48 + static_cast<int64_t>(random() % 300));
    options.invariant = random() % 2 == 0;
    options.working_dtype = random() % 2 == 0 ? DType::kBF16 : DType::kF32;
    const Plan plan = make(batch, options, device);

    PlanBounds bounds;
    bounds.max_requests = static_cast<int64_t>(batch.query_lens.size() + random() % 3);
    bounds.max_query_rows = plan.num_query_rows + static_cast<int64_t>(random() % 3);
    bounds.max_new_tokens_pass_rows = plan.num_query_rows;
    bounds.max_passes = std::max<int64_t>(static_cast<int64_t>(plan.passes.size() + random() % 2), 1);
    bounds.block_size = batch.block_size;
    const Result<int64_t> bytes = workspace_upper_bound_bytes(small_dims(), options, device, bounds);
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    EXPECT_LE(plan.workspace.total_bytes, bytes.value());
  }
}

TEST(Bounded, PlansOfOneFamilyHaveOneShape) {
  DeviceProperties device;
  device.num_processors = 132;
  device.query_tile_tokens = 8;
  PlanOptions options = with_mode(PlanMode::kBridge, 64);
  options.bounds = PlanBounds{.max_requests = 4, .max_query_rows = 20, .max_passes = 5, .block_size = 16};
  const Plan small = make(Batch({1}, {3}), options, device);
  const Plan large = make(Batch({3, 5, 2}, {200, 40, 0}), options, device);
  const Plan none = make(Batch({0, 0}, {7, 0}), options, device);
  for (const Plan* plan : {&small, &large, &none}) {
    EXPECT_EQ(plan->passes.size(), 5U);
    EXPECT_EQ(plan->workspace.total_bytes, small.workspace.total_bytes);
    EXPECT_EQ(plan->workspace.metadata_bytes, small.workspace.metadata_bytes);
    EXPECT_EQ(plan->workspace.expanded_offset_bytes, small.workspace.expanded_offset_bytes);
    EXPECT_EQ(plan->workspace.state_sum_offset_bytes, small.workspace.state_sum_offset_bytes);
    EXPECT_EQ(plan->workspace.partials_offset_bytes, small.workspace.partials_offset_bytes);
    EXPECT_EQ(plan->workspace.max_kv_splits, 198);
    const Pass& last = plan->passes.back();
    EXPECT_EQ(last.span_begin, static_cast<int64_t>(plan->spans.size()));
    EXPECT_EQ(last.span_end, last.span_begin);
    EXPECT_EQ(last.tile_begin, static_cast<int64_t>(plan->tiles.size()));
    EXPECT_EQ(last.tile_end, last.tile_begin);
    EXPECT_EQ(last.rows, 0);
  }
}

TEST(Bounded, RefusesABatchBeyondTheBounds) {
  PlanOptions options = with_mode(PlanMode::kBridge, 64);
  options.bounds = PlanBounds{.max_requests = 2, .max_query_rows = 8, .max_passes = 2};
  const auto refusal = [&](const Batch& batch) {
    return make_plan(small_dims(), batch.view(), options).status();
  };
  EXPECT_EQ(refusal(Batch({1, 1, 1}, {0, 0, 0})).message(),
            "requests: must be <= bounds.max_requests = 2, got 3");
  EXPECT_EQ(refusal(Batch({9}, {0})).message(), "query_rows: must be <= bounds.max_query_rows = 8, got 9");
  EXPECT_EQ(refusal(Batch({1}, {128})).message(), "passes: must be <= bounds.max_passes = 2, got 3");
  EXPECT_EQ(refusal(Batch({1}, {128})).code(), StatusCode::kLimitExceeded);
  EXPECT_TRUE(refusal(Batch({1, 7}, {100, 20})).ok());
  options.mode = PlanMode::kVllm;
  EXPECT_EQ(refusal(Batch({1}, {1})).message(),
            "bounds: must be unset outside modes bridge and min_continuation, got vllm");
  EXPECT_EQ(refusal(Batch({1}, {1})).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace mlaprefill
