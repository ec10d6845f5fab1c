#include "core/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mlaprefill {
namespace {

TEST(FloatFormats, EveryBf16AndF16CodeRoundTrips) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<uint16_t>(code);
    if (const float value = float_from_bf16(bits); !std::isnan(value)) {
      EXPECT_EQ(bf16_from_float(value), bits);
    } else {
      EXPECT_TRUE(std::isnan(float_from_bf16(bf16_from_float(value))));
    }
    if (const float value = float_from_f16(bits); !std::isnan(value)) {
      EXPECT_EQ(f16_from_float(value), bits);
    } else {
      EXPECT_TRUE(std::isnan(float_from_f16(f16_from_float(value))));
    }
  }
}

TEST(FloatFormats, EveryF8CodeRoundTrips) {
  for (uint32_t code = 0; code < 0x100; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    if (const float value = float_from_f8_e4m3(bits); !std::isnan(value)) {
      EXPECT_EQ(f8_e4m3_from_float(value), bits) << code;
    } else {
      EXPECT_EQ(bits & 0x7F, 0x7F);
    }
  }
}

TEST(FloatFormats, RoundsToNearestEvenAndSaturates) {
  EXPECT_EQ(float_from_bf16(bf16_from_float(1.00390625f)), 1.0f);
  EXPECT_EQ(float_from_bf16(bf16_from_float(1.01171875f)), 1.015625f);
  EXPECT_EQ(float_from_f16(f16_from_float(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(float_from_f16(f16_from_float(65520.0f))));
  EXPECT_EQ(float_from_f16(f16_from_float(0x1p-25f)), 0.0f);
  EXPECT_EQ(float_from_f8_e4m3(f8_e4m3_from_float(1000.0f)), 448.0f);
  EXPECT_EQ(float_from_f8_e4m3(f8_e4m3_from_float(-17.0f)), -16.0f);
  EXPECT_TRUE(std::isnan(float_from_f8_e4m3(f8_e4m3_from_float(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace mlaprefill
