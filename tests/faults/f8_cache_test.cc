// Quantised caches: which scale applies to what, and NaN codes.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "backend/latent_cache.h"
#include "core/tensor_access.h"
#include "support/backend_test.h"
#include "support/conversation.h"

namespace mlaprefill {
namespace {

using verify::HostTensor;
using verify::LayerInputs;
using verify::Outputs;

class F8Cache : public BackendTest {};

TEST_P(F8Cache, TheScaleOfAnUnscaledCacheIsIgnored) {
  const Conversation conversation(layer_dims(), 60);
  for (const LayerPath path : layer_paths()) {
    verify::Report report;
    LayerInputs inputs = conversation.inputs(50, 60, DType::kBF16, 16);
    const Outputs plain = verify::run_layer_once(inputs, {.path = path}, backend(), report);
    inputs.config.cache_scale = 0.5f;
    const Outputs scaled = verify::run_layer_once(inputs, {.path = path}, backend(), report);
    verify::check_same("scale of a bf16 cache", plain, scaled, report);
    EXPECT_EQ(report.problem(), "");
  }
}

TEST_P(F8Cache, OneScaleServesLatentsAndRope) {
  // e4m3 codes times 0.5 are exact in bf16: both caches hold the same numbers.
  const Conversation conversation(layer_dims(), 60);
  const LayerInputs f8 = conversation.inputs(50, 60, DType::kF8E4M3, 16);
  LayerInputs bf16 = conversation.inputs(50, 60, DType::kBF16, 16);
  for (int64_t position = 0; position < 50; ++position) {
    const int64_t block = bf16.block_table[static_cast<size_t>(position / 16)];
    for (int64_t d = 0; d < bf16.config.dims.latent_dim(); ++d) {
      bf16.cache.set(0.5f * bf16.cache.get(block, position % 16, d), block, position % 16, d);
    }
  }
  LayerInputs scaled = f8;
  scaled.config.cache_scale = 0.5f;
  for (const LayerPath path : layer_paths()) {
    verify::Report report;
    const Outputs expected = verify::run_layer_once(bf16, {.path = path}, backend(), report);
    const Outputs got = verify::run_layer_once(scaled, {.path = path}, backend(), report);
    verify::check_same("scale 0.5", expected, got, report);
    EXPECT_EQ(report.problem(), "");
  }
}

TEST_P(F8Cache, PackedRowsKeepARopeFarLargerThanTheLatents) {
  HostTensor latent(DType::kF32, {1, 512});
  HostTensor rope(DType::kF32, {1, 64});
  for (int64_t d = 0; d < 512; ++d) latent.set(0.09f * std::sin(static_cast<float>(d)), 0, d);
  for (int64_t d = 0; d < 64; ++d) rope.set(std::cos(static_cast<float>(d)), 0, d);
  HostTensor slots(DType::kI64, {1});
  *static_cast<int64_t*>(slots.view().data) = 0;
  const HostTensor cache(DType::kU8, {1, 1, 656});
  verify::Placement placement(backend());
  const Tensor placed = placement.put(cache);
  const AppendArgs args{placement.put(latent),
                        placement.put(rope),
                        static_cast<const int64_t*>(placement.put(slots).data),
                        {placed, 1.0f}};
  ASSERT_EQ(backend().append(args, {}).message(), "");
  HostTensor got = placement.get(placed, cache);
  std::vector<float> values(576);
  read_latent_row({got.view(), 1.0f}, 0, 0, 576, values.data());
  for (int64_t d = 0; d < 512; ++d)
    EXPECT_NEAR(values[static_cast<size_t>(d)], latent.get(0, d), 0.09 * 0x1p-4);
  for (int64_t d = 0; d < 64; ++d) EXPECT_NEAR(values[static_cast<size_t>(512 + d)], rope.get(0, d), 0x1p-8);
}

TEST_P(F8Cache, AUsedNaNCodeReachesItsOwnRequestOnly) {
  verify::LayerCase one{.name = "nan code", .dims = layer_dims(), .requests = {{3, 40}, {2, 50}}};
  one.cache_dtype = DType::kF8E4M3;
  const LayerInputs clean(one);
  LayerInputs broken = clean;
  const int64_t block = broken.block_table[static_cast<size_t>(broken.block_table_cols + 1)];
  *static_cast<uint8_t*>(element_address(broken.cache.view(), block, 5, 20)) = 0x7F;
  for (const LayerPath path : layer_paths()) {
    verify::Report report;
    const Outputs expected = verify::run_layer_once(clean, {.path = path}, backend(), report);
    const Outputs got = verify::run_layer_once(broken, {.path = path}, backend(), report);
    ASSERT_RAN(report);
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t d = 0; d < 32; ++d) {
        if (row < 3) {
          EXPECT_EQ(got.out.get(row, 1, d), expected.out.get(row, 1, d));
        } else {
          EXPECT_TRUE(std::isnan(got.out.get(row, 1, d)));
        }
      }
      EXPECT_EQ(std::isnan(got.lse.get(1, row)), row >= 3);
    }
  }
}

TEST_P(F8Cache, TheLargestMagnitudesStayFinite) {
  verify::LayerCase one{.name = "448", .dims = layer_dims(), .requests = {{3, 40}}};
  one.cache_dtype = DType::kF8E4M3;
  one.cache_scale = 1.0f / 448.0f;
  LayerInputs inputs(one);
  for (int64_t position = 0; position < 40; ++position) {
    const int64_t block = inputs.block_table[static_cast<size_t>(position / 16)];
    for (int64_t d = 0; d < one.dims.latent_dim(); ++d) {
      inputs.cache.set((d + position) % 3 == 0 ? -448.0f : 448.0f, block, position % 16, d);
    }
  }
  expect_agrees(inputs, backend());
}

TEST_P(F8Cache, WeightsOfAnyDtypeServeEveryActivationDtype) {
  for (const DType weight : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType activation : {DType::kBF16, DType::kF16, DType::kF32}) {
      verify::LayerCase one{.name = "weights", .dims = layer_dims(), .requests = {{3, 40}, {20, 0}}};
      one.dtype = one.out_dtype = activation;
      one.weight_dtype = weight;
      one.cache_dtype = DType::kF8E4M3;
      one.cache_scale = 0.25f;
      one.variants = {{.path = LayerPath::kFused}, {.workspace_tokens = 40}};
      expect_agrees(LayerInputs(one), backend());
    }
  }
}

MLAPREFILL_FOR_EVERY_BACKEND(F8Cache);

}  // namespace
}  // namespace mlaprefill
