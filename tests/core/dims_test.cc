#include "mlaprefill/dims.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mlaprefill {
namespace {

MlaDims deepseek_v3() { return {128, 512, 128, 64, 128, 0.1}; }

TEST(Dims, RealModelsAreAccepted) {
  EXPECT_TRUE(validate(deepseek_v3()).ok());
  EXPECT_TRUE(validate(MlaDims{40, 256, 64, 32, 64, 0.1}).ok());
  EXPECT_TRUE(validate(MlaDims{64, 512, 192, 64, 256, 0.1}).ok());
}

TEST(Dims, EveryFieldIsCheckedByNameAndValue) {
  MlaDims dims = deepseek_v3();
  dims.num_heads = 0;
  EXPECT_EQ(validate(dims).message(), "num_heads: must be >= 1, got 0");
  dims = deepseek_v3();
  dims.v_head_dim = 257;
  EXPECT_EQ(validate(dims).message(), "v_head_dim: must be a positive multiple of 16, got 257");
  dims = deepseek_v3();
  dims.qk_rope_head_dim = 144;
  EXPECT_EQ(validate(dims).code(), StatusCode::kLimitExceeded);
  dims = deepseek_v3();
  dims.softmax_scale = std::numeric_limits<double>::infinity();
  EXPECT_EQ(validate(dims).message(), "softmax_scale: must be finite, got inf");
}

TEST(SoftmaxScale, YarnFactorUsesMscaleAllDim) {
  EXPECT_NEAR(yarn_mscale(40, 0.707) * yarn_mscale(40, 0.707), 1.5896, 1e-4);
  EXPECT_NEAR(yarn_mscale(40, 1.0) * yarn_mscale(40, 1.0), 1.8739, 1e-4);
  EXPECT_EQ(yarn_mscale(40, 0.0), 1.0);
  EXPECT_EQ(yarn_mscale(1.0, 1.0), 1.0);
  EXPECT_NEAR(yarn_softmax_scale(192, 40, 1.0), 1.8739 / std::sqrt(192.0), 1e-5);
}

}  // namespace
}  // namespace mlaprefill
