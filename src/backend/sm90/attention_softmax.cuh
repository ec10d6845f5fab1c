// Online softmax of a warpgroup's score fragment. A thread holds two rows, 8 apart; four neighbouring threads
// share them.
#pragma once

#include <cmath>

#include "backend/sm90/ptx.cuh"

namespace mlaprefill::sm90 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// The carried part of the softmax of a thread's two rows. `max` is a reference point in the natural-log
/// domain of scaled logits, not always the true maximum: it moves only when a row outgrows it by kSlack, so
/// that the output is rarely rescaled. What is carried between launches is exactly this, hence results do not
/// depend on where the keys are cut.
struct RowState {
  float max[2];
  float sum[2];
};

/// exp2 of the score excess that is tolerated: 2^8 keeps P well inside the range of both element types.
inline constexpr float kSlack = 8.0f * kLn2;

__device__ __forceinline__ float max_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFF, x, 2));
}

__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(0xFFFFFFFF, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFF, x, 2);
}

/// Replaces scores by probabilities relative to `rows.max` and adds them to `rows.sum`. Returns whether the
/// accumulated output of this warp must be multiplied by `factor` before this tile's product is added.
template <int kScores>
__device__ __forceinline__ bool softmax_tile(float (&scores)[kScores], RowState& rows, float scale,
                                             float (&factor)[2]) {
  float top[2] = {scores[0], scores[2]};
#pragma unroll
  for (int i = 1; i < kScores; ++i) {
    if (i != 2) top[(i / 2) % 2] = fmaxf(top[(i / 2) % 2], scores[i]);
  }
  bool outgrown = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = max_of_row(top[h]) * scale;
    outgrown |= top[h] - rows.max[h] > kSlack;  // false for two empty rows, whose difference is NaN
  }
  const bool rescale = __any_sync(0xFFFFFFFF, outgrown);
  if (rescale) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float old = rows.max[h];
      rows.max[h] = fmaxf(old, top[h]);
      factor[h] = old == rows.max[h] ? 1.0f : exp2_approximate((old - rows.max[h]) * kLog2E);
      rows.sum[h] *= factor[h];
    }
  }
  const float scale_log2 = scale * kLog2E;
  float offset[2];
  float sum[2][2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) offset[h] = rows.max[h] == -INFINITY ? 0.0f : rows.max[h] * kLog2E;
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    const int h = (i / 2) % 2;
    scores[i] = exp2_approximate(fmaf(scores[i], scale_log2, -offset[h]));
    sum[h][i % 2] += scores[i];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.sum[h] += sum_of_row(sum[h][0] + sum[h][1]);
  return rescale;
}

}  // namespace mlaprefill::sm90
