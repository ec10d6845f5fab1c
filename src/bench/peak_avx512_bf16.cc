#include <immintrin.h>

#include "bench/peak_kernels.h"

namespace mlaprefill::bench {

float peak_loop_avx512_bf16(int64_t steps) {
  const auto a = (__m512bh)_mm512_set1_epi32(0x3F003F00);
  const auto b = (__m512bh)_mm512_set1_epi32(0x3E803E80);
  __m512 sums[24];
#pragma GCC unroll 24
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (auto& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, a, b);
      asm volatile("" : "+v"(sum));
    }
  }
  __m512 total = sums[0];
#pragma GCC unroll 24
  for (int i = 1; i < 24; ++i) total = _mm512_add_ps(total, sums[i]);
  return _mm512_cvtss_f32(total);
}

}  // namespace mlaprefill::bench
