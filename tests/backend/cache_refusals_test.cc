// Refusals of merge, append and the layer's tensors: by name and value, with nothing written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/backend_test.h"

namespace mlaprefill {
namespace {

class Refusals : public BackendTest {
 protected:
  void SetUp() override {
    if (!reads_host_memory()) GTEST_SKIP() << "needs host memory";
  }
};

TEST_P(Refusals, Merge) {
  std::vector<float> first(2 * 3 * 16), second(2 * 3 * 16), lse(6);
  std::vector<PartialAttention> partials{
      {ConstTensor(first.data(), DType::kF32, {2, 3, 16}), {lse.data(), 2, 1, LseBase::kNatural}}};
  MergeArgs args;
  args.out = Tensor(second.data(), DType::kF32, {2, 3, 16});
  const auto message = [&] {
    args.partials = partials;
    return backend().merge(args, {}).message();
  };
  EXPECT_EQ(message(), "");
  partials[0].out.shape[0] = 3;
  EXPECT_EQ(message(), "partials[0].out: must have shape [2, 3, 16], got [3, 3, 16]");
  partials[0].out = ConstTensor(first.data(), DType::kF8E4M3, {2, 3, 16});
  EXPECT_EQ(message(), "partials[0].out: dtype must be bf16, f16 or f32, got f8_e4m3");
  partials[0].out = ConstTensor(second.data(), DType::kBF16, {2, 3, 16});
  EXPECT_EQ(message(),
            "partials[0].out: must have out's dtype and strides to be merged in place, got bf16 beside f32");
  partials[0].out = ConstTensor(first.data(), DType::kF32, {2, 3, 16});
  args.lse = {lse.data(), 1, 3};
  EXPECT_EQ(message(),
            "partials[0].lse: must have lse's strides to be merged in place, got 2, 1 beside 1, 3");
  args.lse = {};
  partials[0].lse.data = nullptr;
  EXPECT_EQ(message(), "partials[0].lse: must not be null, got null");
}

class AppendRefusals : public Refusals {
 protected:
  void expect_refusal(const std::function<void(AppendArgs&)>& spoil, const std::string& message) {
    AppendArgs args;
    args.kv_latent = ConstTensor(input_.data(), DType::kBF16, {3, 512});
    args.k_rope = ConstTensor(input_.data(), DType::kBF16, {3, 64});
    args.slot_mapping = slots_.data();
    args.cache.data = Tensor(cache_.data(), DType::kBF16, {2, 4, 576});
    spoil(args);
    EXPECT_EQ(backend().append(args, {}).message(), message);
    for (const uint16_t bits : cache_) ASSERT_EQ(bits, 0xFFFF) << message;
  }

  std::vector<uint16_t> input_ = std::vector<uint16_t>(3 * 512);
  std::vector<uint16_t> cache_ = std::vector<uint16_t>(2 * 4 * 704, 0xFFFF);
  std::vector<int64_t> slots_{0, -1, 7};
};

TEST_P(AppendRefusals, Slots) {
  slots_[1] = 8;
  expect_refusal([](AppendArgs&) {}, "slot_mapping[1]: must lie in -1 .. 7, got 8");
  slots_[1] = -2;
  expect_refusal([](AppendArgs&) {}, "slot_mapping[1]: must lie in -1 .. 7, got -2");
  expect_refusal([](AppendArgs& a) { a.slot_mapping = nullptr; }, "slot_mapping: must not be null, got null");
}

TEST_P(AppendRefusals, Tensors) {
  expect_refusal([](AppendArgs& a) { a.k_rope.shape[0] = 2; },
                 "k_rope: must have shape [3, 64], got [2, 64]");
  expect_refusal([](AppendArgs& a) { a.k_rope.dtype = DType::kF16; },
                 "k_rope: dtype must be that of kv_latent (bf16), got f16");
  expect_refusal([](AppendArgs& a) { a.kv_latent.dtype = DType::kU8; },
                 "kv_latent: dtype must be bf16, f16 or f32, got u8");
  expect_refusal([](AppendArgs& a) { a.cache.data.shape[2] = 575; },
                 "cache: must have shape [any, any, 576], got [2, 4, 575]");
  expect_refusal([](AppendArgs& a) { a.cache.data.dtype = DType::kI64; },
                 "cache: dtype must be bf16, f16, f32, f8_e4m3 or u8, got i64");
  expect_refusal(
      [](AppendArgs& a) {
        a.cache = {Tensor(a.cache.data.data, DType::kF8E4M3, {2, 4, 576}), 0.0f};
      },
      "cache.scale: must be finite and > 0, got 0");
  expect_refusal(
      [](AppendArgs& a) {
        a.cache.data = Tensor(a.cache.data.data, DType::kU8, {2, 4, 656}, {2630, 656, 1});
      },
      "cache: strides of packed rows must be multiples of 4, got 2630, 656");
  expect_refusal(
      [](AppendArgs& a) {
        a.kv_latent.shape[1] = 256;
        a.cache.data = Tensor(a.cache.data.data, DType::kU8, {2, 4, 656});
      },
      "cache: packed rows hold kv_lora_rank 512 and rope 64, got 256 and 64");
}

class LayerRefusals : public Refusals {
 protected:
  void expect_refusal(const std::function<void(Plan&, LayerTensors&)>& spoil, const std::string& message) {
    verify::LayerCase config{.name = "refusals", .dims = small_dims(), .requests = {{3, 20}}};
    verify::LayerInputs inputs(config);
    auto plan = inputs.plan({}, backend().device_properties());
    const auto layer = MlaLayer::create(backend(), config.dims, inputs.kv_b_proj.view());
    ASSERT_TRUE(plan.ok() && layer.ok());
    verify::Outputs outputs = inputs.outputs();
    LayerTensors tensors = inputs.host_tensors();
    tensors.out = outputs.out.view();
    std::vector<std::max_align_t> workspace(1 << 14);
    const Workspace lent{workspace.data(), static_cast<int64_t>(workspace.size() * sizeof(workspace[0]))};
    spoil(plan.value(), tensors);
    for (const LayerPath path : {LayerPath::kFused, LayerPath::kComposed}) {
      EXPECT_EQ(layer.value().run(plan.value(), tensors, lent, path).message(), message);
    }
    EXPECT_TRUE(std::isnan(outputs.out.get(0, 0, 0)));
  }
};

TEST_P(LayerRefusals, Tensors) {
  expect_refusal([](Plan&, LayerTensors& t) { t.q.shape[0] = 4; },
                 "q: must have shape [3, 2, 48], got [4, 2, 48]");
  expect_refusal([](Plan&, LayerTensors& t) { t.kv_latent.shape[1] = 48; },
                 "kv_latent: must have shape [3, 64], got [3, 48]");
  expect_refusal([](Plan&, LayerTensors& t) { t.out.dtype = DType::kF16; },
                 "out: dtype must be that of q (bf16) or f32, got f16");
  expect_refusal([](Plan&, LayerTensors& t) { t.q.stride[2] = 2; }, "q: last stride must be 1, got 2");
}

TEST_P(LayerRefusals, Context) {
  expect_refusal([](Plan&, LayerTensors& t) { t.cache.data.shape[1] = 8; },
                 "cache: must have block_size 16 of the plan, got 8");
  expect_refusal([](Plan&, LayerTensors& t) { t.cache.data = {}; }, "cache: must have rank 3, got 0");
  expect_refusal([](Plan& p, LayerTensors&) { p.highest_block = 99; },
                 "block_table: block ids must be < the cache's 5 blocks, got 99");
  expect_refusal([](Plan& p, LayerTensors&) { p.block_begin.clear(); },
                 "block_table: must be given to make_plan when a request has context, got one of 20 tokens");
}

TEST_P(LayerRefusals, WeightsByShapeAndDtype) {
  const std::vector<float> weight(128 * 64);
  ConstTensor view(weight.data(), DType::kF32, {128, 48});
  EXPECT_EQ(MlaLayer::create(backend(), small_dims(), view).status().message(),
            "kv_b_proj: must have shape [128, 64], got [128, 48]");
  view = ConstTensor(weight.data(), DType::kF8E4M3, {128, 64});
  EXPECT_EQ(MlaLayer::create(backend(), small_dims(), view).status().message(),
            "kv_b_proj: dtype must be bf16, f16 or f32, got f8_e4m3");
}

MLAPREFILL_FOR_EVERY_BACKEND(Refusals);
MLAPREFILL_FOR_EVERY_BACKEND(AppendRefusals);
MLAPREFILL_FOR_EVERY_BACKEND(LayerRefusals);

TEST(OpenBackend, UnknownNamesListTheKnownOnes) {
  const auto opened = open_backend("gpu");
  EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(opened.status().message(), "backend: must be one of cpu, reference, sm90, got \"gpu\"");
}

TEST(OpenBackend, AnUnavailableOneIsListedWithItsReasons) {
  for (const BackendInfo& info : list_backends()) {
    const auto opened = open_backend(info.name);
    EXPECT_EQ(opened.ok(), info.available) << info.name;
    if (!info.available) {
      ASSERT_FALSE(info.reasons.empty()) << info.name;
      EXPECT_EQ(opened.status().code(), StatusCode::kUnavailable);
      EXPECT_NE(opened.status().message().find(info.reasons[0]), std::string::npos);
    }
  }
}

TEST(Supports, NamesTheArgumentThatIsInTheWay) {
  for (const NamedBackend& named : test_backends()) {
    SupportQuery query;
    query.dims = {16, 512, 128, 64, 128, 0.1};
    EXPECT_TRUE(named.backend->supports(query).empty()) << named.name;
    query.query_dtype = DType::kF8E4M3;
    query.cache_dtype = DType::kI32;
    std::string reasons;
    for (const std::string& reason : named.backend->supports(query)) reasons += reason + "\n";
    EXPECT_NE(reasons.find("query_dtype: dtype must be bf16, f16 or f32, got f8_e4m3"), std::string::npos);
    EXPECT_NE(reasons.find("cache: dtype must be bf16, f16, f32, f8_e4m3 or u8, got i32"), std::string::npos);
    query.needs_context = false;
    reasons.clear();
    for (const std::string& reason : named.backend->supports(query)) reasons += reason + "\n";
    EXPECT_EQ(reasons.find("cache"), std::string::npos);
  }
}

}  // namespace
}  // namespace mlaprefill
