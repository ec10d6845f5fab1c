// Scalar conversions between float32 and the storage formats; round to nearest even, NaN stays NaN.
#pragma once

#include <cstdint>

#include "mlaprefill/tensor.h"

namespace mlaprefill {

uint16_t bf16_from_float(float value);
float float_from_bf16(uint16_t bits);
uint16_t f16_from_float(float value);
float float_from_f16(uint16_t bits);
/// e4m3fn: no infinities, 0x7F and 0xFF are NaN, finite values saturate at 448.
uint8_t f8_e4m3_from_float(float value);
float float_from_f8_e4m3(uint8_t bits);

/// Element `index` of an array of `dtype`, which must be a float format.
float load_float(const void* data, DType dtype, int64_t index);
void store_float(void* data, DType dtype, int64_t index, float value);

}  // namespace mlaprefill
