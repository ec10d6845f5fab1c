// The slow way for rows that a NaN or infinity behind their mask has reached: the tensor cores multiply a
// masked value by a probability of 0, which spoils that column for all rows of the warp.
#pragma once

#include "backend/sm90/attention_epilogue.cuh"
#include "backend/sm90/attention_mask.cuh"
#include "backend/sm90/attention_softmax.cuh"

namespace mlaprefill::sm90 {

/// Whether a value that is not finite has reached the warp's output. It is in its column of every row, so one
/// row a thread tells.
template <int kOut>
__device__ __forceinline__ bool output_is_spoilt(const float (&out)[kOut]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kOut; i += 4) sum += out[i] + out[i + 1];
  return __any_sync(0xFFFFFFFF, !(fabsf(sum) < INFINITY));
}

/// `columns` / 4 products of two rows that four neighbouring threads share.
template <Element kElement>
__device__ __forceinline__ float dot_quarter(const uint16_t* a, const uint16_t* b, int32_t columns) {
  float sum = 0.0f;
#pragma unroll 4
  for (int32_t c = static_cast<int32_t>(threadIdx.x % 4); c < columns; c += 4) {
    sum = fmaf(unpack<kElement>(a[c]), unpack<kElement>(b[c]), sum);
  }
  return sum;
}

/// Computes a warp's rows again, one key at a time, reading none that a row does not see. Four threads share
/// a row, each with its columns of the accumulators.
template <class Traits>
__device__ __forceinline__ void repair_rows(const AttentionParams& params, const WorkItem& item,
                                            uint32_t rank, int32_t warpgroup, float (&out)[Traits::kOut],
                                            RowState& rows) {
  const OutputRows place = output_rows(params, item, rank, warpgroup);
  clear(out);
  rows = start_rows<Traits>(params, item, place, out);
  const int32_t first = first_row(item, rank, warpgroup) + thread_row();
  const int32_t key_head = kv_head(params, place.head);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int32_t keys = place.has(h) ? visible_keys(item, first + 8 * h) : 0;
    const int32_t most_keys = static_cast<int32_t>(__reduce_max_sync(0xFFFFFFFF, keys));
    const uint16_t* q = params.q.row(place.row(h), place.head);
#pragma unroll 1
    for (int32_t key = 0; key < most_keys; ++key) {
      const bool sees = key < keys;
      const int64_t key_row = int64_t{item.kv_row} + key;
      float score = 0.0f;
      if (sees) {
        score = dot_quarter<Traits::kElement>(q, params.k_nope.row(key_row, key_head), Traits::kNope) +
                dot_quarter<Traits::kElement>(q + Traits::kNope,
                                              params.k_rope.row(key_row, params.rope_per_head ? key_head : 0),
                                              Traits::kRope);
      }
      score = sum_of_row(score) * params.scale;
      if (!sees) continue;
      const float top = fmaxf(rows.max[h], score);
      const float offset = top == -INFINITY ? 0.0f : top;
      const float factor = exp2_approximate((rows.max[h] - offset) * kLog2E);
      const float p = exp2_approximate((score - offset) * kLog2E);
      rows.max[h] = top;
      rows.sum[h] = fmaf(rows.sum[h], factor, p);
      const uint16_t* v = params.v.row(key_row, key_head) + 2 * (threadIdx.x % 4);
#pragma unroll
      for (int i = 0; i < Traits::kValue / 8; ++i) {
        float* pair = &out[4 * i + 2 * h];
        pair[0] = fmaf(p, unpack<Traits::kElement>(v[8 * i]), pair[0] * factor);
        pair[1] = fmaf(p, unpack<Traits::kElement>(v[8 * i + 1]), pair[1] * factor);
      }
    }
  }
}

}  // namespace mlaprefill::sm90
