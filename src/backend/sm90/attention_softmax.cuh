// Online softmax of a warpgroup's score fragment. A thread holds two rows, 8 apart; four neighbouring threads
// share them.
#pragma once

#include <cmath>

#include "backend/sm90/ptx.cuh"

namespace mlaprefill::sm90 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

/// The carried part of the softmax of a thread's two rows. `max` is a reference point in the natural-log
/// domain of scaled logits, not always the true maximum: it starts from a few scores and moves only when a
/// row outgrows it by kSlack, so that the output is rarely rescaled. What is carried between launches is
/// exactly this, hence results do not depend on where the keys are cut between launches.
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

/// Gives rows that start a reference point, the greatest of eight of their scores; -inf if those are hidden.
template <int kScores>
__device__ __forceinline__ void start_max(const float (&scores)[kScores], RowState& rows, float scale) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float some = max_of_row(fmaxf(scores[2 * h], scores[2 * h + 1])) * scale;
    if (rows.max[h] == -INFINITY) rows.max[h] = some;
  }
}

/// A quick test of a tile's scores: false only if no row of this warp outgrows `rows.max`, rows with a NaN
/// apart. Of two floats the greater is the greater integer unless both are negative, and then zero bounds
/// them; so one instruction takes two scores.
template <int kScores>
__device__ __forceinline__ bool may_outgrow(const float (&scores)[kScores], const RowState& rows,
                                            float scale) {
  int32_t top[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kScores; i += 2) {
    int32_t& row_top = top[(i / 2) % 2];
    row_top = __vimax3_s32(row_top, __float_as_int(scores[i]), __float_as_int(scores[i + 1]));
  }
  bool outgrown = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) outgrown |= __int_as_float(top[h]) * scale - rows.max[h] > kSlack;
  return __any_sync(0xFFFFFFFF, outgrown);
}

/// Moves `rows.max` to the greatest scores if any row of this warp outgrows it. Returns whether it moved:
/// the warp's accumulated output must then be multiplied by `factor` before this tile's product is added.
template <int kScores>
__device__ __forceinline__ bool raise_max(const float (&scores)[kScores], RowState& rows, float scale,
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
  if (!__any_sync(0xFFFFFFFF, outgrown)) return false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float old = rows.max[h];
    rows.max[h] = fmaxf(old, top[h]);
    factor[h] = old == rows.max[h] ? 1.0f : exp2_approximate((old - rows.max[h]) * kLog2E);
    rows.sum[h] *= factor[h];
  }
  return true;
}

/// Replaces scores by probabilities relative to `rows.max` and adds them to `rows.sum`.
template <int kScores>
__device__ __forceinline__ void exponentiate(float (&scores)[kScores], RowState& rows, float scale) {
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
}

}  // namespace mlaprefill::sm90
