// The softmax scale is the caller's: given, never guessed, applied once, carried by the LSE.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/backend_test.h"

namespace mlaprefill {
namespace {

class Scale : public BackendTest {};

TEST_P(Scale, IsAppliedOnceToRowsOfManyKeys) {
  const DType dtype = serves(DType::kF32) ? DType::kF32 : DType::kBF16;
  for (const double scale : {1.8739 / std::sqrt(192.0), 1.0 / std::sqrt(192.0)}) {
    verify::AttentionCase one{.name = "scale",
                              .requests = {{20, 90}},
                              .dtype = dtype,
                              .out_dtype = dtype,
                              .heads = 16,
                              .kv_heads = 16,
                              .softmax_scale = scale};
    expect_agrees(one, backend());
  }
}

TEST_P(Scale, ZeroCountsTheKeys) {
  verify::AttentionCase one{.name = "zero scale", .requests = {{3, 257}}, .softmax_scale = 0.0};
  verify::Report report;
  const auto got = verify::attend_once(verify::AttentionInputs(one), backend(), false, report);
  ASSERT_RAN(report);
  for (int64_t row = 0; row < 3; ++row) {
    EXPECT_NEAR(got.lse.get(1, row), std::log(255.0 + static_cast<double>(row)), 2e-6);
  }
}

TEST_P(Scale, OfALayerComesFromItsDims) {
  verify::LayerCase one{.name = "layer scale", .dims = layer_dims(), .requests = {{9, 50}}};
  one.dims.softmax_scale = 1.8739 / std::sqrt(48.0);
  expect_agrees(verify::LayerInputs(one), backend());
  one.dims.softmax_scale = -0.3;
  expect_agrees(verify::LayerInputs(one), backend());
}

MLAPREFILL_FOR_EVERY_BACKEND(Scale);

}  // namespace
}  // namespace mlaprefill
