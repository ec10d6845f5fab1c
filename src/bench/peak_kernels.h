// Register-only loops of one instruction each. Each returns a value that depends on every accumulator.
#pragma once

#include <cstdint>

namespace mlaprefill::bench {

inline constexpr double kAvx2FlopPerStep = 12 * 8 * 2;
inline constexpr double kAvx512FlopPerStep = 24 * 16 * 2;
inline constexpr double kAvx512Bf16FlopPerStep = 24 * 32 * 2;
inline constexpr double kAmxBf16FlopPerStep = 4 * 16 * 16 * 32 * 2;

float peak_loop_avx2(int64_t steps);
float peak_loop_avx512(int64_t steps);
float peak_loop_avx512_bf16(int64_t steps);
float peak_loop_amx_bf16(int64_t steps);

}  // namespace mlaprefill::bench
