// Ragged attention in fp64 on the device, one block a (query row, head), and the same in the naive working
// precision (float32 scores, 16-bit probabilities), whose error sets the tolerance.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/attention/attention_runner.h"

namespace mlaprefill::sm90 {

template <class Scalar>
__device__ float widen(Scalar x) {
  if constexpr (sizeof(Scalar) == 4) {
    return x;
  } else {
    return static_cast<float>(x);
  }
}

/// Keys held in shared memory by the reference.
inline constexpr int kMaxReferenceKeys = 5600;

/// out, naive: [rows, heads, value] in call order; lse: [rows, heads].
template <class Scalar>
__global__ void reference_kernel(AttentionCall call, AttentionSpan span, int nope, int value, double* out,
                                 float* naive, double* lse) {
  extern __shared__ double logits[];
  __shared__ double sums[3];
  const int64_t row = span.q_row + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (call.num_heads / call.kv_heads);
  const int64_t last = min(span.k_len, span.causal_offset + static_cast<int64_t>(blockIdx.x) + 1);
  const int keys = static_cast<int>(max(int64_t{0}, last));
  const auto* q =
      static_cast<const Scalar*>(call.q.data) + row * call.q.row_stride + head * call.q.head_stride;
  for (int key = static_cast<int>(threadIdx.x); key < keys; key += static_cast<int>(blockDim.x)) {
    const int64_t at = span.k_row + key;
    const auto* k = static_cast<const Scalar*>(call.k_nope.data) + at * call.k_nope.row_stride +
                    kv_head * call.k_nope.head_stride;
    const auto* rope = static_cast<const Scalar*>(call.k_rope.data) + at * call.k_rope.row_stride +
                       (call.rope_per_head ? kv_head * call.k_rope.head_stride : 0);
    double dot = 0;
    for (int i = 0; i < nope; ++i) dot += double{widen(q[i])} * double{widen(k[i])};
    for (int i = 0; i < 64; ++i) dot += double{widen(q[nope + i])} * double{widen(rope[i])};
    logits[key] = dot * double{call.scale};
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double top = -INFINITY, sum = 0, naive_sum = 0;
    for (int key = 0; key < keys; ++key) top = fmax(top, logits[key]);
    for (int key = 0; key < keys; ++key) {
      sum += exp(logits[key] - top);
      naive_sum += double{expf(static_cast<float>(logits[key] - top))};
    }
    sums[0] = top;
    sums[1] = sum;
    sums[2] = naive_sum;
  }
  __syncthreads();
  const int64_t place = (row * call.num_heads + head);
  for (int column = static_cast<int>(threadIdx.x); column < value; column += static_cast<int>(blockDim.x)) {
    double exact = 0;
    float rounded = 0;
    for (int key = 0; key < keys; ++key) {
      const auto* v = static_cast<const Scalar*>(call.v.data) + (span.k_row + key) * call.v.row_stride +
                      kv_head * call.v.head_stride;
      const double weight = exp(logits[key] - sums[0]);
      exact += weight * double{widen(v[column])};
      rounded += widen(static_cast<Scalar>(static_cast<float>(weight))) * widen(v[column]);
    }
    out[place * value + column] = keys > 0 ? exact / sums[1] : 0.0;
    naive[place * value + column] =
        keys > 0 ? widen(static_cast<Scalar>(rounded / static_cast<float>(sums[2]))) : 0.0f;
  }
  if (threadIdx.x == 0) lse[place] = keys > 0 ? sums[0] + log(sums[1]) : -INFINITY;
}

/// Uniform numbers with unit variance, a hash of seed and index.
template <class Scalar>
__global__ void fill_random(Scalar* data, int64_t count, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t x = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ull + seed;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    x ^= x >> 31;
    const float unit = static_cast<float>(x >> 40) * (1.0f / 16777216.0f);
    data[i] = static_cast<Scalar>((unit - 0.5f) * 3.4641016f);
  }
}

}  // namespace mlaprefill::sm90
