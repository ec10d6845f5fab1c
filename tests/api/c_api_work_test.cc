// The C ABI's backends at work, on values simple enough to know the answer: constant rows, so every output is
// the value itself and every LSE is logit + ln(visible keys).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mlaprefill/c_api.h"

namespace {

mlaprefill_tensor view(std::vector<float>& values, std::vector<int64_t> shape) {
  return mlaprefill_contiguous(values.data(), MLAPREFILL_F32, static_cast<int32_t>(shape.size()),
                               shape.data());
}

class CApiWork : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(mlaprefill_backend_open(GetParam(), nullptr, &backend_, &error_), MLAPREFILL_OK)
        << error_.message;
  }
  void TearDown() override { mlaprefill_backend_destroy(backend_); }

  mlaprefill_backend* backend_ = nullptr;
  mlaprefill_error error_ = MLAPREFILL_ERROR_INIT;
};

TEST_P(CApiWork, DescribesItself) {
  char text[512];
  size_t length = 0;
  EXPECT_EQ(mlaprefill_backend_description(backend_, text, sizeof(text), &length, &error_), MLAPREFILL_OK);
  EXPECT_GT(length, 0u);
  mlaprefill_device_properties device = MLAPREFILL_DEVICE_PROPERTIES_INIT;
  EXPECT_EQ(mlaprefill_backend_device_properties(backend_, &device, &error_), MLAPREFILL_OK);
  EXPECT_GT(device.key_tile_tokens, 0);
}

TEST_P(CApiWork, Memory) {
  void* data = nullptr;
  ASSERT_EQ(mlaprefill_allocate(backend_, 16, &data, &error_), MLAPREFILL_OK);
  const char in[16] = "fifteen letters";
  char out[16] = {};
  EXPECT_EQ(mlaprefill_copy_from_host(backend_, data, in, 16, nullptr, &error_), MLAPREFILL_OK);
  EXPECT_EQ(mlaprefill_copy_to_host(backend_, out, data, 16, nullptr, &error_), MLAPREFILL_OK);
  EXPECT_EQ(mlaprefill_synchronize(backend_, nullptr, &error_), MLAPREFILL_OK);
  EXPECT_STREQ(out, in);
  mlaprefill_release(backend_, data);
  EXPECT_EQ(mlaprefill_allocate(backend_, -1, &data, &error_), MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_EQ(data, nullptr);
}

TEST_P(CApiWork, SupportsAnswersWithReasons) {
  mlaprefill_dims dims = MLAPREFILL_DIMS_INIT;
  dims.num_heads = 2;
  dims.kv_lora_rank = 64;
  dims.qk_nope_head_dim = 32;
  dims.qk_rope_head_dim = 16;
  dims.v_head_dim = 32;
  dims.softmax_scale = 0.1;
  mlaprefill_support_query query = MLAPREFILL_SUPPORT_QUERY_INIT;
  query.dims = &dims;
  int32_t supported = -1;
  char reasons[256] = {};
  EXPECT_EQ(
      mlaprefill_backend_supports(backend_, &query, &supported, reasons, sizeof(reasons), nullptr, &error_),
      MLAPREFILL_OK);
  EXPECT_EQ(supported, 1) << reasons;
  query.query_dtype = MLAPREFILL_I64;
  EXPECT_EQ(
      mlaprefill_backend_supports(backend_, &query, &supported, reasons, sizeof(reasons), nullptr, &error_),
      MLAPREFILL_OK);
  EXPECT_EQ(supported, 0);
  EXPECT_NE(std::string(reasons), "");
}

TEST_P(CApiWork, CausalAttentionAndMerge) {
  // Two requests: 3 queries on 5 keys, 2 queries on no key.
  const int32_t cu_q[3] = {0, 3, 5};
  const int32_t cu_k[3] = {0, 5, 5};
  mlaprefill_attention_span spans[2];
  ASSERT_EQ(mlaprefill_make_attention_spans(cu_q, cu_k, 2, 1, 5, 5, spans, &error_), MLAPREFILL_OK);
  EXPECT_EQ(spans[0].causal_offset, 2);

  std::vector<float> q(5 * 1 * 16, 0.5f), k(5 * 1 * 16, 0.25f), v(5 * 1 * 16, 3.0f);
  std::vector<float> out(5 * 16, -9.0f), lse(5, -9.0f);
  mlaprefill_attention_args args = MLAPREFILL_ATTENTION_ARGS_INIT;
  args.q = view(q, {5, 1, 16});
  args.k = view(k, {5, 1, 16});
  args.v = view(v, {5, 1, 16});
  args.out = view(out, {5, 1, 16});
  args.lse.data = lse.data();
  args.lse.head_stride = 5;
  args.spans = spans;
  args.num_spans = 2;
  args.softmax_scale = 0.5;
  int64_t workspace_bytes = -1;
  EXPECT_EQ(mlaprefill_attention_workspace_bytes(backend_, &args, &workspace_bytes, &error_), MLAPREFILL_OK);
  EXPECT_EQ(workspace_bytes, 0);
  ASSERT_EQ(mlaprefill_attention(backend_, &args, nullptr, &error_), MLAPREFILL_OK) << error_.message;
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_NEAR(out[t * 16], 3.0f, 1e-5f);
    EXPECT_NEAR(lse[t], 0.5 * 16 * 0.125 + std::log(3.0 + static_cast<double>(t)), 1e-5);
  }
  for (size_t t = 3; t < 5; ++t) {
    EXPECT_EQ(out[t * 16], 0.0f);
    EXPECT_EQ(lse[t], -std::numeric_limits<float>::infinity());
  }

  // Merging a result with itself keeps the output and adds ln 2.
  std::vector<float> merged(5 * 16), merged_lse(5);
  const mlaprefill_partial partial{args.out, args.lse};
  const mlaprefill_partial partials[2] = {partial, partial};
  const mlaprefill_tensor merged_view = view(merged, {5, 1, 16});
  mlaprefill_lse merged_lse_view = args.lse;
  merged_lse_view.data = merged_lse.data();
  ASSERT_EQ(mlaprefill_merge(backend_, partials, 2, &merged_view, &merged_lse_view, nullptr, &error_),
            MLAPREFILL_OK)
      << error_.message;
  EXPECT_NEAR(merged[0], 3.0f, 1e-5f);
  EXPECT_NEAR(merged_lse[0] - lse[0], std::log(2.0f), 1e-5f);
  EXPECT_EQ(merged_lse[4], -std::numeric_limits<float>::infinity());

  merged_lse_view.base = 5;
  EXPECT_EQ(mlaprefill_merge(backend_, partials, 2, &merged_view, &merged_lse_view, nullptr, &error_),
            MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "lse.base: must be 0 (natural) or 1 (log2), got 5");
  args.num_spans = -1;
  EXPECT_EQ(mlaprefill_attention(backend_, &args, nullptr, &error_), MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "num_spans: must be >= 0, got -1");
}

TEST_P(CApiWork, StateIsCarriedBetweenCalls) {
  std::vector<float> q(2 * 16, 0.5f), k(128 * 16, 0.25f), v(128 * 16, 3.0f);
  std::vector<float> out(2 * 16), lse(2), state_out(2 * 16), state_max(2), state_sum(2);
  mlaprefill_attention_args args = MLAPREFILL_ATTENTION_ARGS_INIT;
  mlaprefill_attention_span span{0, 2, 0, 64, MLAPREFILL_NOT_CAUSAL, 0, 1};
  args.q = view(q, {2, 1, 16});
  args.k = view(k, {128, 1, 16});
  args.v = view(v, {128, 1, 16});
  args.out = view(out, {2, 1, 16});
  args.lse.data = lse.data();
  args.lse.head_stride = 2;
  args.spans = &span;
  args.num_spans = 1;
  args.softmax_scale = 0.5;
  args.state_out = state_out.data();
  args.state_max = state_max.data();
  args.state_sum = state_sum.data();
  ASSERT_EQ(mlaprefill_attention(backend_, &args, nullptr, &error_), MLAPREFILL_OK) << error_.message;
  span = {0, 2, 64, 64, MLAPREFILL_NOT_CAUSAL, 1, 0};
  ASSERT_EQ(mlaprefill_attention(backend_, &args, nullptr, &error_), MLAPREFILL_OK) << error_.message;
  EXPECT_NEAR(out[0], 3.0f, 1e-5f);
  EXPECT_NEAR(lse[1], 1.0 + std::log(128.0), 1e-5);
}

/// A layer over 3 cached and 2 new tokens of one request, every latent element 0.2 and every weight 0.01.
class CApiLayer : public CApiWork {
 protected:
  static constexpr int32_t kHeads = 2, kRank = 64, kNope = 32, kRope = 16, kValue = 32, kBlock = 4;

  void SetUp() override {
    CApiWork::SetUp();
    if (HasFatalFailure()) return;
    dims_.num_heads = kHeads;
    dims_.kv_lora_rank = kRank;
    dims_.qk_nope_head_dim = kNope;
    dims_.qk_rope_head_dim = kRope;
    dims_.v_head_dim = kValue;
    dims_.softmax_scale = 0.5;
    batch_.num_requests = 1;
    batch_.query_start_loc = query_start_loc_;
    batch_.context_lens = context_lens_;
    batch_.block_table = block_table_;
    batch_.block_table_rows = batch_.block_table_cols = batch_.block_table_row_stride = 1;
    batch_.block_size = kBlock;
    batch_.num_cache_blocks = 2;
    mlaprefill_plan_options options = MLAPREFILL_PLAN_OPTIONS_INIT;
    options.working_dtype = MLAPREFILL_F32;
    ASSERT_EQ(mlaprefill_plan_create(&dims_, &batch_, &options, nullptr, &plan_, &error_), MLAPREFILL_OK)
        << error_.message;
    ASSERT_EQ(mlaprefill_plan_get_info(plan_, &info_, &error_), MLAPREFILL_OK);
    weight_view_ = view(weight_, {kHeads * (kNope + kValue), kRank});
    cache_.data = view(cache_values_, {2, kBlock, kRank + kRope});
    fill_cache();
  }

  /// The three cached tokens, through append; slot -1 is skipped.
  void fill_cache() {
    std::vector<float> latent(4 * kRank, 0.2f), rope(4 * kRope, 0.3f);
    std::fill_n(latent.begin() + kRank, kRank, 77.0f);
    const int64_t slots[4] = {4, -1, 5, 6};
    const mlaprefill_tensor latent_view = view(latent, {4, kRank});
    const mlaprefill_tensor rope_view = view(rope, {4, kRope});
    ASSERT_EQ(mlaprefill_append(backend_, &latent_view, &rope_view, slots, &cache_, nullptr, &error_),
              MLAPREFILL_OK)
        << error_.message;
  }

  void TearDown() override {
    mlaprefill_plan_destroy(plan_);
    CApiWork::TearDown();
  }

  mlaprefill_dims dims_ = MLAPREFILL_DIMS_INIT;
  mlaprefill_batch batch_ = MLAPREFILL_BATCH_INIT;
  const int32_t query_start_loc_[2] = {0, 2};
  const int32_t context_lens_[1] = {3};
  const int32_t block_table_[1] = {1};
  mlaprefill_plan* plan_ = nullptr;
  mlaprefill_plan_info info_ = MLAPREFILL_PLAN_INFO_INIT;
  std::vector<float> weight_ = std::vector<float>(kHeads * (kNope + kValue) * kRank, 0.01f);
  mlaprefill_tensor weight_view_ = MLAPREFILL_TENSOR_INIT;
  std::vector<float> cache_values_ =
      std::vector<float>(2 * kBlock * (kRank + kRope), std::numeric_limits<float>::quiet_NaN());
  mlaprefill_kv_cache cache_ = MLAPREFILL_KV_CACHE_INIT;
  std::vector<float> latent_ = std::vector<float>(2 * kRank, 0.2f);
  std::vector<float> rope_ = std::vector<float>(2 * kRope, 0.3f);
};

TEST_P(CApiLayer, EveryPathGivesTheKnownAnswer) {
  mlaprefill_layer* layer = nullptr;
  ASSERT_EQ(mlaprefill_layer_create(backend_, &dims_, &weight_view_, &layer, &error_), MLAPREFILL_OK)
      << error_.message;
  int32_t path = -1;
  ASSERT_EQ(mlaprefill_layer_get_path(layer, &path, &error_), MLAPREFILL_OK);
  std::vector<float> q(2 * kHeads * (kNope + kRope), 0.1f);
  std::vector<char> workspace(static_cast<size_t>(info_.workspace_bytes) + 256);
  mlaprefill_layer_args args = MLAPREFILL_LAYER_ARGS_INIT;
  args.q = view(q, {2, kHeads, kNope + kRope});
  args.kv_latent = view(latent_, {2, kRank});
  args.k_rope = view(rope_, {2, kRope});
  args.cache = cache_;
  args.workspace = {workspace.data(), static_cast<int64_t>(workspace.size())};
  ASSERT_EQ(mlaprefill_upload(backend_, plan_, args.workspace, nullptr, &error_), MLAPREFILL_OK);
  for (const int32_t wanted : {MLAPREFILL_PATH_AUTO, MLAPREFILL_PATH_COMPOSED}) {
    std::vector<float> out(2 * kHeads * kValue, -9.0f), lse(kHeads * 2, -9.0f);
    args.out = view(out, {2, kHeads, kValue});
    args.lse.data = lse.data();
    args.lse.head_stride = 2;
    args.path = wanted;
    ASSERT_EQ(mlaprefill_layer_run(layer, plan_, &args, nullptr, &error_), MLAPREFILL_OK) << error_.message;
    for (const float value : out) EXPECT_NEAR(value, 0.128f, 1e-5f);
    const double logit = 0.5 * 0.1 * (kNope * 0.128 + kRope * 0.3);
    EXPECT_NEAR(lse[0], logit + std::log(4.0), 1e-5);
    EXPECT_NEAR(lse[3], logit + std::log(5.0), 1e-5);
  }
  args.path = 3;
  EXPECT_EQ(mlaprefill_layer_run(layer, plan_, &args, nullptr, &error_), MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "path: must be in 0..2, got 3");
  args.path = MLAPREFILL_PATH_FUSED;
  if (path == MLAPREFILL_PATH_COMPOSED) {
    EXPECT_EQ(mlaprefill_layer_run(layer, plan_, &args, nullptr, &error_), MLAPREFILL_UNSUPPORTED);
  }
  args.path = MLAPREFILL_PATH_COMPOSED;
  args.workspace.size_bytes = info_.workspace_bytes - 1;
  EXPECT_EQ(mlaprefill_layer_run(layer, plan_, &args, nullptr, &error_), MLAPREFILL_WORKSPACE_TOO_SMALL);
  mlaprefill_layer_destroy(layer);
}

TEST_P(CApiLayer, ExpandGathersAndProjects) {
  mlaprefill_weights* weights = nullptr;
  ASSERT_EQ(mlaprefill_weights_create(backend_, &dims_, &weight_view_, &weights, &error_), MLAPREFILL_OK)
      << error_.message;
  std::vector<float> latent(5 * (kRank + kRope)), expanded(5 * kHeads * (kNope + kValue));
  mlaprefill_expand_args args = MLAPREFILL_EXPAND_ARGS_INIT;
  args.plan = plan_;
  args.weights = weights;
  args.kv_latent = view(latent_, {2, kRank});
  args.k_rope = view(rope_, {2, kRope});
  args.cache = cache_;
  args.latent = view(latent, {5, kRank + kRope});
  args.expanded = view(expanded, {5, kHeads, kNope + kValue});
  ASSERT_EQ(mlaprefill_expand(backend_, &args, nullptr, &error_), MLAPREFILL_OK) << error_.message;
  for (const float value : expanded) EXPECT_NEAR(value, 0.128f, 1e-5f);
  EXPECT_NEAR(latent[kRank], 0.3f, 1e-6f);
  args.weights = nullptr;
  EXPECT_EQ(mlaprefill_expand(backend_, &args, nullptr, &error_), MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_STREQ(error_.message, "weights: must not be NULL");
  mlaprefill_weights_destroy(weights);
}

TEST_P(CApiLayer, OutlivesItsBackendHandle) {
  mlaprefill_backend* backend = nullptr;
  ASSERT_EQ(mlaprefill_backend_open(GetParam(), nullptr, &backend, &error_), MLAPREFILL_OK);
  mlaprefill_layer* layer = nullptr;
  ASSERT_EQ(mlaprefill_layer_create(backend, &dims_, &weight_view_, &layer, &error_), MLAPREFILL_OK);
  mlaprefill_backend_destroy(backend);
  int32_t path = -1;
  EXPECT_EQ(mlaprefill_layer_get_path(layer, &path, &error_), MLAPREFILL_OK);
  mlaprefill_layer_destroy(layer);
}

INSTANTIATE_TEST_SUITE_P(Backends, CApiWork, testing::Values("reference", "cpu"),
                         [](const auto& param) { return std::string(param.param); });
INSTANTIATE_TEST_SUITE_P(Backends, CApiLayer, testing::Values("reference", "cpu"),
                         [](const auto& param) { return std::string(param.param); });

TEST(CApiBackends, AreListedAndOpenedByName) {
  const int64_t count = mlaprefill_num_backends();
  ASSERT_GE(count, 2);
  mlaprefill_error error = MLAPREFILL_ERROR_INIT;
  std::vector<std::string> available;
  for (int64_t i = 0; i < count; ++i) {
    mlaprefill_backend_info info = MLAPREFILL_BACKEND_INFO_INIT;
    char reasons[400] = {};
    ASSERT_EQ(mlaprefill_get_backend_info(i, &info, reasons, sizeof(reasons), nullptr, &error),
              MLAPREFILL_OK);
    if (info.available != 0) {
      available.push_back(info.name);
    } else {
      EXPECT_NE(std::string(reasons), "") << info.name;
    }
  }
  EXPECT_EQ(std::count(available.begin(), available.end(), "reference"), 1);
  EXPECT_EQ(std::count(available.begin(), available.end(), "cpu"), 1);
  mlaprefill_backend_info info = MLAPREFILL_BACKEND_INFO_INIT;
  EXPECT_EQ(mlaprefill_get_backend_info(count, &info, nullptr, 0, nullptr, &error),
            MLAPREFILL_INVALID_ARGUMENT);

  mlaprefill_backend* backend = nullptr;
  EXPECT_EQ(mlaprefill_backend_open("quantum", nullptr, &backend, &error), MLAPREFILL_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("reference"), std::string::npos);
  EXPECT_EQ(backend, nullptr);
  mlaprefill_backend_options options = MLAPREFILL_BACKEND_OPTIONS_INIT;
  options.isa = "sse9";
  EXPECT_NE(mlaprefill_backend_open("cpu", &options, &backend, &error), MLAPREFILL_OK);
  EXPECT_NE(std::string(error.message).find("sse9"), std::string::npos);
  options.isa = nullptr;
  options.num_threads = -3;
  EXPECT_NE(mlaprefill_backend_open("cpu", &options, &backend, &error), MLAPREFILL_OK);
}

}  // namespace
