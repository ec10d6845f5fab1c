#include <immintrin.h>

#include "bench/peak_kernels.h"

namespace mlaprefill::bench {

float peak_loop_avx2(int64_t steps) {
  const __m256 a = _mm256_set1_ps(0.5f);
  const __m256 b = _mm256_set1_ps(0.25f);
  __m256 sums[12];
#pragma GCC unroll 12
  for (auto& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (auto& sum : sums) {
      sum = _mm256_fmadd_ps(a, b, sum);
      asm volatile("" : "+x"(sum));
    }
  }
  __m256 total = sums[0];
#pragma GCC unroll 12
  for (int i = 1; i < 12; ++i) total = _mm256_add_ps(total, sums[i]);
  return _mm256_cvtss_f32(total);
}

}  // namespace mlaprefill::bench
