#include "verify/oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "verify/compare.h"

namespace mlaprefill::verify {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// 5 queries on 3 keys, zero logits, one-hot values: every answer is known.
class Oracle : public testing::Test {
 protected:
  void SetUp() override {
    for (size_t key = 0; key < 3; ++key) v_[key * 16 + key] = 1.0f;
    args_.q = ConstTensor(q_.data(), DType::kF32, {5, 1, 16});
    args_.k = ConstTensor(k_.data(), DType::kF32, {3, 1, 16});
    args_.v = ConstTensor(v_.data(), DType::kF32, {3, 1, 16});
    args_.out = Tensor(out_.data(), DType::kF32, {5, 1, 16});
    args_.softmax_scale = 0.25;
    args_.spans = spans_;
  }

  std::vector<float> q_ = std::vector<float>(5 * 16), k_ = std::vector<float>(3 * 16), v_ = k_, out_ = q_;
  std::vector<AttentionSpan> spans_{{.q_len = 5, .k_len = 3, .causal_offset = -2}};
  AttentionArgs args_;
  const std::vector<int64_t> heads_{0};
};

TEST_F(Oracle, CountsVisibleKeysExactly) {
  const auto rows = expect_attention(args_, heads_);
  ASSERT_EQ(rows.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    const double visible = i < 2 ? 0.0 : static_cast<double>(i - 1);
    for (size_t d = 0; d < 16; ++d) {
      EXPECT_EQ(rows[i].out[d], static_cast<double>(d) < visible ? 1.0 / visible : 0.0) << i << " " << d;
    }
    EXPECT_EQ(rows[i].lse, std::log(visible));
  }
}

TEST_F(Oracle, NaNReachesOnlyTheQueriesThatSeeIt) {
  k_[2 * 16] = kNaN;
  const auto rows = expect_attention(args_, heads_);
  EXPECT_EQ(rows[3].lse, std::log(2.0));
  EXPECT_TRUE(std::isnan(rows[4].lse));
  EXPECT_TRUE(std::isnan(rows[4].out[9]));
  EXPECT_TRUE(std::isnan(rows[4].naive_out[9]));
}

TEST_F(Oracle, NegativeScaleAndZeroScale) {
  for (size_t d = 0; d < 16; ++d) q_[4 * 16 + d] = k_[d] = 1.0f;
  args_.softmax_scale = 0.0;
  EXPECT_NEAR(expect_attention(args_, heads_)[4].lse, std::log(3.0), 1e-15);
  args_.softmax_scale = -0.5;
  EXPECT_NEAR(expect_attention(args_, heads_)[4].lse, std::log(2.0 + std::exp(-8.0)), 1e-15);
}

TEST(Compare, HoldsEachElementToTwiceTheNaiveErrorAndOneRounding) {
  const std::vector<ExpectedRow> expected{
      {.at = {0, 0}, .out = {1.0, 2.0}, .lse = 3.0, .naive_out = {1.0, 2.25}, .naive_lse = 3.0}};
  std::vector<float> out{1.5f, 1.5f};
  const ConstTensor view(out.data(), DType::kF32, {1, 1, 2});
  const Comparison within = compare(expected, view, {});
  EXPECT_EQ(within.failure, "");
  EXPECT_EQ(within.out.error, 0.5);
  out[1] = 1.49f;
  EXPECT_EQ(compare(expected, view, {}).failure, "out[0, 0, 1]: must be 2 within 0.5, got 1.49000001");
}

TEST(Compare, DemandsNaNAndInfAtTheSamePlaces) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<ExpectedRow> expected{
      {.at = {0, 0}, .out = {std::nan("")}, .lse = -infinity, .naive_out = {0.0}, .naive_lse = -infinity}};
  std::vector<float> out{kNaN};
  std::vector<float> lse{-std::numeric_limits<float>::infinity()};
  const ConstTensor view(out.data(), DType::kF32, {1, 1, 1});
  const ConstLseView lse_view{lse.data(), 1, 1, LseBase::kNatural};
  EXPECT_TRUE(compare(expected, view, lse_view).ok());
  lse[0] = -lse[0];
  EXPECT_FALSE(compare(expected, view, lse_view).ok());
  lse[0] = kNaN;
  EXPECT_FALSE(compare(expected, view, lse_view).ok());
  lse[0] = -lse[0];
  out[0] = 0.0f;
  EXPECT_FALSE(compare(expected, view, {}).ok());
}

TEST(Compare, ReadsLog2Bases) {
  const std::vector<ExpectedRow> expected{
      {.at = {1, 2}, .out = {}, .lse = 1.5, .naive_out = {}, .naive_lse = 1.5}};
  std::vector<float> lse(20, kNaN);
  lse[1 * 4 + 2] = static_cast<float>(1.5 / std::log(2.0));
  const ConstTensor out(nullptr, DType::kF32, {5, 4, 0});
  EXPECT_EQ(compare(expected, out, {lse.data(), 1, 4, LseBase::kLog2}).failure, "");
}

}  // namespace
}  // namespace mlaprefill::verify
