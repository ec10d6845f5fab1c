#include <immintrin.h>

#include "bench/peak_kernels.h"

namespace mlaprefill::bench {

float peak_loop_avx512(int64_t steps) {
  const __m512 a = _mm512_set1_ps(0.5f);
  const __m512 b = _mm512_set1_ps(0.25f);
  __m512 sums[24];
#pragma GCC unroll 24
  for (auto& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 24
    for (auto& sum : sums) {
      sum = _mm512_fmadd_ps(a, b, sum);
      asm volatile("" : "+v"(sum));
    }
  }
  __m512 total = sums[0];
#pragma GCC unroll 24
  for (int i = 1; i < 24; ++i) total = _mm512_add_ps(total, sums[i]);
  return _mm512_cvtss_f32(total);
}

}  // namespace mlaprefill::bench
