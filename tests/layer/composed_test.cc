// The composed layer over hand-made plans equals the fused one.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "mlaprefill/layer.h"
#include "verify/compare.h"
#include "verify/oracle.h"

namespace mlaprefill {
namespace {

const MlaDims kDims{2, 32, 16, 16, 16, 0.2};

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

// Requests of 3, 0 and 2 new tokens on 5, 4 and 0 cached ones; the first is cut after its third key.
Plan two_pass_plan() {
  Plan plan;
  plan.dims = kDims;
  plan.options.working_dtype = DType::kF32;
  plan.num_requests = 3;
  plan.num_query_rows = 5;
  plan.query_start_loc = {0, 3, 3, 5};
  plan.query_lens = {3, 0, 2};
  plan.context_lens = {5, 4, 0};
  plan.longest_context_tokens = 5;
  plan.block_size = 4;
  plan.block_begin = {0, 2, 3, 3};
  plan.blocks = {2, 0, 1};
  plan.highest_block = 2;
  Span head{.key_begin = 0, .key_end = 3, .row_begin = 0, .request = 0};
  head.first = true;
  Span tail{.key_begin = 3, .key_end = 8, .row_begin = 1, .request = 0, .continuation = true};
  tail.last = true;
  Span whole{.key_begin = 0, .key_end = 2, .row_begin = 6, .request = 2};
  whole.first = whole.last = true;
  plan.spans = {head, tail, whole};
  plan.passes = {Pass{.rows = 3, .span_begin = 0, .span_end = 1},
                 Pass{.rows = 8, .span_begin = 1, .span_end = 3}};
  plan.workspace = {.latent_offset_bytes = 0,
                    .expanded_offset_bytes = 1536,
                    .state_out_offset_bytes = 3584,
                    .state_max_offset_bytes = 4352,
                    .state_sum_offset_bytes = 4608,
                    .total_bytes = 4864};
  return plan;
}

class ComposedLayer : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_backend("reference");
    ASSERT_TRUE(opened.ok());
    backend_ = std::move(opened).value();
    auto layer = MlaLayer::create(*backend_, kDims, ConstTensor(weight_.data(), DType::kF32, {2 * 32, 32}));
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    layer_.emplace(std::move(layer).value());
  }

  LayerTensors tensors(std::vector<float>& out, std::vector<float>& lse) {
    LayerTensors t;
    t.q = ConstTensor(q_.data(), DType::kF32, {5, 2, 32});
    t.kv_latent = ConstTensor(latent_.data(), DType::kF32, {5, 32});
    t.k_rope = ConstTensor(rope_.data(), DType::kF32, {5, 16});
    t.cache.data = Tensor(cache_.data(), DType::kF32, {3, 4, 48});
    t.out = Tensor(out.data(), DType::kF32, {5, 2, 16});
    t.lse = {lse.data(), 5, 1};
    return t;
  }

  std::vector<float> q_ = random_floats(5 * 2 * 32, 1);
  std::vector<float> latent_ = random_floats(5 * 32, 2);
  std::vector<float> rope_ = random_floats(5 * 16, 3);
  std::vector<float> cache_ = random_floats(3 * 4 * 48, 4);
  std::vector<float> weight_ = random_floats(2 * 32 * 32, 5);
  std::vector<float> fused_out_ = std::vector<float>(5 * 2 * 16, NAN), composed_out_ = fused_out_;
  std::vector<float> fused_lse_ = std::vector<float>(10, 7.0f), composed_lse_ = fused_lse_;
  std::unique_ptr<Backend> backend_;
  std::optional<MlaLayer> layer_;
};

TEST_F(ComposedLayer, EqualsTheFusedOneWhenARequestIsCut) {
  const Plan plan = two_pass_plan();
  std::vector<float> workspace(4864 / 4, NAN);
  EXPECT_EQ(layer_->path(), LayerPath::kFused);
  ASSERT_EQ(layer_->run(plan, tensors(fused_out_, fused_lse_), {}).message(), "");
  ASSERT_EQ(
      layer_->run(plan, tensors(composed_out_, composed_lse_), {workspace.data(), 4864}, LayerPath::kComposed)
          .message(),
      "");
  for (size_t i = 0; i < fused_out_.size(); ++i) EXPECT_NEAR(composed_out_[i], fused_out_[i], 1e-6) << i;
  for (size_t i = 0; i < fused_lse_.size(); ++i) EXPECT_NEAR(composed_lse_[i], fused_lse_[i], 1e-6) << i;
}

TEST_F(ComposedLayer, TheReferenceAgreesWithTheOracle) {
  const Plan plan = two_pass_plan();
  const LayerTensors t = tensors(fused_out_, fused_lse_);
  ASSERT_EQ(layer_->run(plan, t, {}).message(), "");
  const ConstTensor weight(weight_.data(), DType::kF32, {2 * 32, 32});
  const auto rows = verify::all_rows(plan, verify::all_heads(2));
  EXPECT_EQ(rows.size(), 10u);
  const auto expected = verify::expect_layer(plan, weight, t, rows);
  EXPECT_EQ(verify::compare(expected, t.out, t.lse).failure, "");
}

TEST_F(ComposedLayer, RefusesWhatItCannotRunByText) {
  Plan plan = two_pass_plan();
  std::vector<float> workspace(4864 / 4, NAN);
  const auto run = [&](Workspace lent) {
    return layer_->run(plan, tensors(composed_out_, composed_lse_), lent, LayerPath::kComposed);
  };
  const Status small = run({workspace.data(), 4863});
  EXPECT_EQ(small.code(), StatusCode::kWorkspaceTooSmall);
  EXPECT_EQ(small.message(), "workspace: must have 4864 bytes, got 4863");
  EXPECT_EQ(run({nullptr, 4864}).message(), "workspace: data must not be null, got null");
  plan.options.working_dtype = DType::kBF16;
  EXPECT_EQ(run({workspace.data(), 4864}).message(),
            "q: dtype must be the plan's working dtype bf16, got f32");
  plan.options.working_dtype = DType::kF32;
  plan.highest_block = 3;
  EXPECT_EQ(run({workspace.data(), 4864}).message(),
            "block_table: block ids must be < the cache's 3 blocks, got 3");
  plan.dims.num_heads = 4;
  EXPECT_EQ(run({workspace.data(), 4864}).message(), "plan.dims.num_heads: must be the layer's 2, got 4");
  for (float value : composed_out_) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace mlaprefill
