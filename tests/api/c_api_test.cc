// The C ABI without a backend: status, strings, struct growth, plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "mlaprefill/c_api.h"

namespace {

mlaprefill_dims test_dims() {
  mlaprefill_dims dims = MLAPREFILL_DIMS_INIT;
  dims.num_heads = 16;
  dims.kv_lora_rank = 512;
  dims.qk_nope_head_dim = 128;
  dims.qk_rope_head_dim = 64;
  dims.v_head_dim = 128;
  dims.softmax_scale = 0.07;
  return dims;
}

/// Two requests, 4 and 7 new tokens, 2048 and 32 cached ones.
struct TestBatch {
  std::vector<int32_t> query_start_loc{0, 4, 11};
  std::vector<int32_t> context_lens{2048, 32};
  mlaprefill_batch batch = MLAPREFILL_BATCH_INIT;

  TestBatch() {
    batch.num_requests = 2;
    batch.query_start_loc = query_start_loc.data();
    batch.context_lens = context_lens.data();
  }
};

/// A plan handle that frees itself.
struct PlanHandle {
  mlaprefill_plan* plan = nullptr;
  ~PlanHandle() { mlaprefill_plan_destroy(plan); }
};

std::string json_of(const mlaprefill_plan* plan) {
  size_t length = 0;
  EXPECT_EQ(mlaprefill_plan_to_json(plan, nullptr, 0, &length, nullptr), MLAPREFILL_OK);
  std::string json(length + 1, '?');
  EXPECT_EQ(mlaprefill_plan_to_json(plan, json.data(), json.size(), nullptr, nullptr), MLAPREFILL_OK);
  EXPECT_EQ(json.back(), '\0');
  json.pop_back();
  return json;
}

TEST(CApi, NamesAndVersion) {
  EXPECT_STREQ(mlaprefill_status_name(MLAPREFILL_INACTIVE_ROWS), "inactive_rows");
  EXPECT_STREQ(mlaprefill_status_name(99), "unknown");
  EXPECT_STREQ(mlaprefill_status_name(-1), "unknown");
  EXPECT_EQ(std::count(mlaprefill_version(), mlaprefill_version() + std::strlen(mlaprefill_version()), '.'),
            2);
  EXPECT_EQ(mlaprefill_dtype_size_bytes(MLAPREFILL_BF16), 2);
  EXPECT_EQ(mlaprefill_dtype_size_bytes(MLAPREFILL_F8_E4M3), 1);
  EXPECT_EQ(mlaprefill_dtype_size_bytes(77), 0);
}

TEST(CApi, LayoutOfStructsThatNeverGrow) {
  EXPECT_EQ(sizeof(mlaprefill_tensor), 80u);
  EXPECT_EQ(sizeof(mlaprefill_lse), 32u);
  EXPECT_EQ(sizeof(mlaprefill_attention_span), 48u);
  EXPECT_EQ(sizeof(mlaprefill_partial), 112u);
  EXPECT_EQ(sizeof(mlaprefill_kv_cache), 88u);
  EXPECT_EQ(sizeof(mlaprefill_workspace), 16u);
}

TEST(CApi, PlanAnswersEveryQuestion) {
  const mlaprefill_dims dims = test_dims();
  const TestBatch test;
  mlaprefill_plan_options options = MLAPREFILL_PLAN_OPTIONS_INIT;
  options.workspace_tokens = 1024;
  mlaprefill_error error = MLAPREFILL_ERROR_INIT;
  PlanHandle handle;
  ASSERT_EQ(mlaprefill_plan_create(&dims, &test.batch, &options, nullptr, &handle.plan, &error),
            MLAPREFILL_OK)
      << error.message;

  mlaprefill_plan_info info = MLAPREFILL_PLAN_INFO_INIT;
  ASSERT_EQ(mlaprefill_plan_get_info(handle.plan, &info, &error), MLAPREFILL_OK);
  EXPECT_EQ(info.num_requests, 2);
  EXPECT_EQ(info.num_query_rows, 11);
  EXPECT_EQ(info.num_passes, 3);  // ceil((2052 + 39) / 1024)
  EXPECT_EQ(info.expanded_rows, 2091);
  EXPECT_EQ(info.visible_pairs, 4 * 2048 + 10 + 7 * 32 + 28);
  EXPECT_EQ(info.verdict, MLAPREFILL_VERDICT_ACTIVE);
  EXPECT_GE(info.workspace_bytes, 1024 * 16 * 256 * 2);

  int64_t rows = 0;
  for (int64_t p = 0; p < info.num_passes; ++p) {
    mlaprefill_pass pass = MLAPREFILL_PASS_INIT;
    ASSERT_EQ(mlaprefill_plan_get_pass(handle.plan, p, &pass, &error), MLAPREFILL_OK);
    EXPECT_EQ(pass.kind, MLAPREFILL_PASS_JOINT);
    for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
      mlaprefill_span span = MLAPREFILL_SPAN_INIT;
      ASSERT_EQ(mlaprefill_plan_get_span(handle.plan, s, &span, &error), MLAPREFILL_OK);
      rows += span.key_end - span.key_begin;
    }
  }
  EXPECT_EQ(rows, info.expanded_rows);

  mlaprefill_pass pass = MLAPREFILL_PASS_INIT;
  EXPECT_EQ(mlaprefill_plan_get_pass(handle.plan, 3, &pass, &error), MLAPREFILL_OUT_OF_RANGE);
  EXPECT_STREQ(error.message, "index: must be in 0..3 (excluded), got 3");
  mlaprefill_tile tile = MLAPREFILL_TILE_INIT;
  EXPECT_EQ(mlaprefill_plan_get_tile(handle.plan, info.num_tiles, &tile, &error), MLAPREFILL_OUT_OF_RANGE);

  EXPECT_NE(json_of(handle.plan).find("\"mlaprefill.plan/1\""), std::string::npos);
  size_t length = 0;
  EXPECT_EQ(mlaprefill_plan_to_text(handle.plan, nullptr, 0, &length, &error), MLAPREFILL_OK);
  EXPECT_GT(length, 0u);
}

TEST(CApi, TilesAppearForADeviceThatWantsThem) {
  const mlaprefill_dims dims = test_dims();
  const TestBatch test;
  mlaprefill_device_properties device = MLAPREFILL_DEVICE_PROPERTIES_INIT;
  device.query_tile_tokens = 128;
  PlanHandle handle;
  ASSERT_EQ(mlaprefill_plan_create(&dims, &test.batch, nullptr, &device, &handle.plan, nullptr),
            MLAPREFILL_OK);
  mlaprefill_plan_info info = MLAPREFILL_PLAN_INFO_INIT;
  ASSERT_EQ(mlaprefill_plan_get_info(handle.plan, &info, nullptr), MLAPREFILL_OK);
  ASSERT_EQ(info.num_tiles, 2);
  mlaprefill_tile tile = MLAPREFILL_TILE_INIT;
  ASSERT_EQ(mlaprefill_plan_get_tile(handle.plan, 0, &tile, nullptr), MLAPREFILL_OK);
  EXPECT_EQ(tile.query_rows, 4);
  EXPECT_EQ(tile.key_tiles, (2052 + 63) / 64);
}

TEST(CApi, EveryPlanOptionReachesThePlanner) {
  const mlaprefill_dims dims = test_dims();
  TestBatch test;
  const auto plan_json = [&](auto change) {
    mlaprefill_plan_options options = MLAPREFILL_PLAN_OPTIONS_INIT;
    options.workspace_tokens = 1000;
    change(options);
    PlanHandle handle;
    mlaprefill_error error = MLAPREFILL_ERROR_INIT;
    const mlaprefill_status status =
        mlaprefill_plan_create(&dims, &test.batch, &options, nullptr, &handle.plan, &error);
    return status == MLAPREFILL_OK ? json_of(handle.plan) : std::string(error.message);
  };
  const std::string base = plan_json([](auto&) {});
  test.batch.block_size = 16;
  EXPECT_NE(plan_json([](auto& o) { o.mode = MLAPREFILL_MODE_VLLM; }), base);
  EXPECT_NE(plan_json([](auto& o) { o.workspace_tokens = 500; }), base);
  EXPECT_NE(plan_json([](auto& o) { o.invariant = 1; }), base);
  EXPECT_NE(plan_json([](auto& o) { o.max_requests = 1; }), base);
  EXPECT_NE(plan_json([](auto& o) { o.max_query_tokens = 10; }), base);
  EXPECT_NE(plan_json([](auto& o) { o.max_context_tokens_per_request = 2047; }), base);
  EXPECT_EQ(plan_json([](auto& o) { o.mode = 4; }), "mode: must be in 0..3, got 4");
  EXPECT_EQ(plan_json([](auto& o) { o.working_dtype = 7; }), "working_dtype: must be in 0..6, got 7");
  test.query_start_loc = {0, 4, 4};
  EXPECT_NE(plan_json([](auto& o) { o.strict = 1; }).find("1"), std::string::npos);
  mlaprefill_plan_bounds bounds = MLAPREFILL_PLAN_BOUNDS_INIT;
  bounds.max_requests = 1;
  bounds.max_query_rows = 64;
  bounds.max_passes = 8;
  EXPECT_NE(plan_json([&](auto& o) { o.bounds = &bounds; }).find("requests"), std::string::npos);
}

TEST(CApi, NullAndMalformedArgumentsAreRefused) {
  const mlaprefill_dims dims = test_dims();
  TestBatch test;
  mlaprefill_error error = MLAPREFILL_ERROR_INIT;
  mlaprefill_plan* plan = reinterpret_cast<mlaprefill_plan*>(1);
  EXPECT_EQ(mlaprefill_plan_create(nullptr, &test.batch, nullptr, nullptr, &plan, &error),
            MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "dims: must not be NULL");
  EXPECT_EQ(error.message_length, std::strlen(error.message));
  EXPECT_EQ(plan, nullptr);
  EXPECT_EQ(mlaprefill_plan_create(&dims, &test.batch, nullptr, nullptr, nullptr, &error),
            MLAPREFILL_INVALID_ARGUMENT);
  test.batch.num_requests = -1;
  EXPECT_EQ(mlaprefill_plan_create(&dims, &test.batch, nullptr, nullptr, &plan, &error),
            MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "batch.num_requests: must be in 0..2^31-1, got -1");
  EXPECT_EQ(mlaprefill_plan_get_info(nullptr, nullptr, &error), MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_EQ(mlaprefill_validate_dims(&dims, nullptr), MLAPREFILL_OK);
  EXPECT_EQ(mlaprefill_parse_plan_mode("vllm", nullptr, &error), MLAPREFILL_INVALID_ARGUMENT);
  int32_t mode = -1;
  EXPECT_EQ(mlaprefill_parse_plan_mode("vllm", &mode, &error), MLAPREFILL_OK);
  EXPECT_EQ(mode, MLAPREFILL_MODE_VLLM);
  mlaprefill_plan_destroy(nullptr);
}

TEST(CApi, ShorterAndLongerStructs) {
  const mlaprefill_dims dims = test_dims();
  TestBatch test;
  // An older caller, whose batch ended after context_lens: the rest takes its default.
  test.batch.block_size = -77;
  test.batch.struct_size = offsetof(mlaprefill_batch, query_lens);
  PlanHandle handle;
  EXPECT_EQ(mlaprefill_plan_create(&dims, &test.batch, nullptr, nullptr, &handle.plan, nullptr),
            MLAPREFILL_OK);

  // A newer caller: fine while what we do not know is zero.
  struct {
    mlaprefill_dims dims;
    int64_t newer;
  } longer{test_dims(), 0};
  longer.dims.struct_size = sizeof(longer);
  EXPECT_EQ(mlaprefill_validate_dims(&longer.dims, nullptr), MLAPREFILL_OK);
  longer.newer = 1;
  mlaprefill_error error = MLAPREFILL_ERROR_INIT;
  EXPECT_EQ(mlaprefill_validate_dims(&longer.dims, &error), MLAPREFILL_UNSUPPORTED);
  EXPECT_NE(std::string(error.message).find("dims: must be at most"), std::string::npos);

  longer.dims.struct_size = 0;
  EXPECT_EQ(mlaprefill_validate_dims(&longer.dims, &error), MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "dims.struct_size: must be the size of the struct, got 0");

  // An older caller's result struct is not written past its end.
  mlaprefill_plan_info info = MLAPREFILL_PLAN_INFO_INIT;
  info.struct_size = offsetof(mlaprefill_plan_info, num_query_rows);
  info.num_query_rows = -5;
  EXPECT_EQ(mlaprefill_plan_get_info(handle.plan, &info, nullptr), MLAPREFILL_OK);
  EXPECT_EQ(info.num_requests, 2);
  EXPECT_EQ(info.num_query_rows, -5);
}

TEST(CApi, LongMessagesAreCutToTheCallersBuffer) {
  mlaprefill_error error = MLAPREFILL_ERROR_INIT;
  error.struct_size = offsetof(mlaprefill_error, message) + 8;
  std::memset(error.message, '#', sizeof(error.message));
  EXPECT_EQ(mlaprefill_validate_dims(nullptr, &error), MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "dims: m");
  EXPECT_EQ(error.message[8], '#');
  EXPECT_EQ(error.message_length, std::strlen("dims: must not be NULL"));
}

TEST(CApi, ThreadsDoNotShareMessages) {
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        mlaprefill_dims dims = test_dims();
        dims.num_heads = 1000 + t;
        mlaprefill_error error = MLAPREFILL_ERROR_INIT;
        EXPECT_NE(mlaprefill_validate_dims(&dims, &error), MLAPREFILL_OK);
        EXPECT_NE(std::string(error.message).find(std::to_string(1000 + t)), std::string::npos);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(CApi, UpperBoundCoversThePlan) {
  const mlaprefill_dims dims = test_dims();
  const TestBatch test;
  mlaprefill_plan_bounds bounds = MLAPREFILL_PLAN_BOUNDS_INIT;
  bounds.max_requests = 2;
  bounds.max_query_rows = 11;
  bounds.max_passes = 4;
  mlaprefill_plan_options options = MLAPREFILL_PLAN_OPTIONS_INIT;
  options.workspace_tokens = 1024;
  int64_t bound = 0;
  mlaprefill_error error = MLAPREFILL_ERROR_INIT;
  ASSERT_EQ(mlaprefill_workspace_upper_bound_bytes(&dims, &options, nullptr, &bounds, &bound, &error),
            MLAPREFILL_OK)
      << error.message;
  PlanHandle handle;
  ASSERT_EQ(mlaprefill_plan_create(&dims, &test.batch, &options, nullptr, &handle.plan, nullptr),
            MLAPREFILL_OK);
  mlaprefill_plan_info info = MLAPREFILL_PLAN_INFO_INIT;
  ASSERT_EQ(mlaprefill_plan_get_info(handle.plan, &info, nullptr), MLAPREFILL_OK);
  EXPECT_GE(bound, info.workspace_bytes);
}

TEST(CApi, YarnScale) {
  EXPECT_DOUBLE_EQ(mlaprefill_yarn_mscale(1.0, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(mlaprefill_yarn_softmax_scale(64, 1.0, 1.0), 0.125);
}

}  // namespace
