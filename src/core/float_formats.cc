#include "core/float_formats.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace mlaprefill {
namespace {

// Rounds |value| to a format with `mantissa_bits` and smallest normal exponent `min_exponent`, as an integer
// count of its units in the last place; ties to even.
double round_to_format(double magnitude, int mantissa_bits, int min_exponent) {
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int unit = std::max(exponent - 1, min_exponent) - mantissa_bits;
  return std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);
}

}  // namespace

uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f16_from_float(float value) {
  const uint32_t sign = (std::bit_cast<uint32_t>(value) >> 16) & 0x8000u;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7E00u);
  const double rounded = round_to_format(std::fabs(static_cast<double>(value)), 10, -14);
  if (rounded > 65504.0) return static_cast<uint16_t>(sign | 0x7C00u);
  if (rounded < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<uint32_t>(rounded * 0x1p24));
  const auto wide = std::bit_cast<uint32_t>(static_cast<float>(rounded));
  return static_cast<uint16_t>(sign | ((wide >> 13) - (112u << 10)));
}

float float_from_f16(uint16_t bits) {
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t mantissa = bits & 0x3FFu;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

uint8_t f8_e4m3_from_float(float value) {
  const uint32_t sign = (std::bit_cast<uint32_t>(value) >> 24) & 0x80u;
  if (std::isnan(value)) return static_cast<uint8_t>(sign | 0x7Fu);
  const double rounded = round_to_format(std::fabs(static_cast<double>(value)), 3, -6);
  if (rounded >= 448.0) return static_cast<uint8_t>(sign | 0x7Eu);
  if (rounded < 0x1p-6) return static_cast<uint8_t>(sign | static_cast<uint32_t>(rounded * 0x1p9));
  const auto wide = std::bit_cast<uint32_t>(static_cast<float>(rounded));
  return static_cast<uint8_t>(sign | ((wide >> 20) - (120u << 3)));
}

float float_from_f8_e4m3(uint8_t bits) {
  const uint32_t exponent = (bits >> 3) & 0xFu;
  const uint32_t mantissa = bits & 0x7u;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

float load_float(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBF16:
      return float_from_bf16(static_cast<const uint16_t*>(data)[index]);
    case DType::kF16:
      return float_from_f16(static_cast<const uint16_t*>(data)[index]);
    case DType::kF8E4M3:
      return float_from_f8_e4m3(static_cast<const uint8_t*>(data)[index]);
    default:
      return std::nanf("");
  }
}

void store_float(void* data, DType dtype, int64_t index, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = value;
      break;
    case DType::kBF16:
      static_cast<uint16_t*>(data)[index] = bf16_from_float(value);
      break;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = f16_from_float(value);
      break;
    case DType::kF8E4M3:
      static_cast<uint8_t*>(data)[index] = f8_e4m3_from_float(value);
      break;
    default:
      break;
  }
}

}  // namespace mlaprefill
