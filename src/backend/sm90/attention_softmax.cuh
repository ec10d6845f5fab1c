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
/// row of the warp outgrows its own by kSlack, so that the output is rarely rescaled. What is carried between
/// launches is exactly this, hence results do not depend on where the keys are cut between launches.
struct RowState {
  float max[2];
  float sum[2];
};

/// Excess over the reference point that is tolerated, as an exponent of 2: it keeps P well inside the range
/// of both element types.
inline constexpr float kSlack = 8.0f;

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

/// Turns scores into exponents of 2 relative to `rows.max`, or to zero where there is none yet.
template <int kScores>
__device__ __forceinline__ void to_exponents(float (&scores)[kScores], const RowState& rows, float scale) {
  const float scale_log2 = scale * kLog2E;
  float offset[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) offset[h] = rows.max[h] == -INFINITY ? 0.0f : rows.max[h] * kLog2E;
#pragma unroll
  for (int i = 0; i < kScores; ++i) scores[i] = fmaf(scores[i], scale_log2, -offset[(i / 2) % 2]);
}

/// Whether a row of this warp outgrows its reference point, or has none; a NaN counts as outgrown, which
/// costs time only. Of two floats the greater is the greater integer unless both are negative, and then zero
/// bounds them; so one instruction takes two exponents.
template <int kScores>
__device__ __forceinline__ bool outgrown(const float (&exponents)[kScores], const RowState& rows) {
  int32_t top[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kScores; i += 2) {
    int32_t& row_top = top[(i / 2) % 2];
    row_top = __vimax3_s32(row_top, __float_as_int(exponents[i]), __float_as_int(exponents[i + 1]));
  }
  return __any_sync(0xFFFFFFFF, max(top[0], top[1]) > __float_as_int(kSlack) || rows.max[0] == -INFINITY ||
                                    rows.max[1] == -INFINITY);
}

/// Moves `rows.max` up to the greatest scores, and the exponents with it, which keep the rounding they had: a
/// probability of this tile is off by up to some 2^-24 of the distance moved. The warp's accumulated output
/// must be multiplied by `factor`, 1 where nothing is accumulated, before this tile's product is added.
template <int kScores>
__device__ __forceinline__ void raise_max(float (&exponents)[kScores], RowState& rows, float (&factor)[2]) {
  float top[2] = {exponents[0], exponents[2]};
#pragma unroll
  for (int i = 1; i < kScores; ++i) {
    if (i != 2) top[(i / 2) % 2] = fmaxf(top[(i / 2) % 2], exponents[i]);
  }
  float raised[2] = {0.0f, 0.0f};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = max_of_row(top[h]);
    const bool none = rows.max[h] == -INFINITY;
    if (top[h] > (none ? -INFINITY : 0.0f)) {
      const float old = none ? 0.0f : rows.max[h];
      rows.max[h] = fmaf(top[h], kLn2, old);
      raised[h] = (rows.max[h] - old) * kLog2E;
    }
    factor[h] = none ? 1.0f : exp2_approximate(-raised[h]);
    rows.sum[h] *= factor[h];
  }
#pragma unroll
  for (int i = 0; i < kScores; ++i) exponents[i] -= raised[(i / 2) % 2];
}

/// Turns a tile's scores into exponents, moving reference points that are outgrown. Returns whether the
/// warp's output must be multiplied by `factor`.
template <int kScores>
__device__ __forceinline__ bool scale_scores(float (&scores)[kScores], RowState& rows, float scale,
                                             float (&factor)[2]) {
  to_exponents(scores, rows, scale);
  const bool raise = outgrown(scores, rows);
  if (raise) raise_max(scores, rows, factor);
  return raise;
}

/// Replaces exponents by probabilities; `sums` are those of what this thread holds.
template <int kScores>
__device__ __forceinline__ void exponentiate(float (&exponents)[kScores], float (&sums)[2]) {
  float sum[2][2] = {};
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    exponents[i] = exp2_approximate(exponents[i]);
    sum[(i / 2) % 2][i % 2] += exponents[i];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) sums[h] = sum[h][0] + sum[h][1];
}

/// Adds a tile's probabilities to the rows.
__device__ __forceinline__ void add_sums(RowState& rows, const float (&sums)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) rows.sum[h] += sum_of_row(sums[h]);
}

}  // namespace mlaprefill::sm90
