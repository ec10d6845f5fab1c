// Ragged attention in fp64 on the device, one block a (query row, head), and the same in the naive working
// precision (float32 scores, 16-bit probabilities), whose error sets the tolerance.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backend/sm90/attention_params.h"
#include "core/tensor_access.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::sm90 {

/// What an attention call reads, besides its spans.
struct ReferenceInputs {
  static constexpr int64_t kRope = 64;

  explicit ReferenceInputs(const AttentionArgs& args)
      : nope(static_cast<int>(args.q.shape[2] - kRope)),
        value(static_cast<int>(args.v.shape[2])),
        heads(static_cast<int>(args.q.shape[1])),
        heads_per_kv_head(static_cast<int>(args.q.shape[1] / args.k.shape[1])),
        scale(args.softmax_scale),
        q(rows_of(args.q)),
        k_nope(rows_of(args.k)),
        k_rope(args.k_rope.present() ? TensorRows{data_of(args.k_rope), args.k_rope.stride[0], 0}
                                     : rows_of(slice_last(args.k, nope, kRope))),
        v(rows_of(args.v)) {}
  static const uint16_t* data_of(const ConstTensor& tensor) {
    return static_cast<const uint16_t*>(tensor.data);
  }
  static TensorRows rows_of(const ConstTensor& tensor) {
    return {data_of(tensor), tensor.stride[0], tensor.stride[1]};
  }

  int nope, value, heads, heads_per_kv_head;
  double scale;
  TensorRows q, k_nope, k_rope, v;
};

template <class Scalar>
__device__ const Scalar* row_of(const TensorRows& rows, int64_t row, int head) {
  return reinterpret_cast<const Scalar*>(rows.row(row, head));
}

template <class Scalar>
__device__ float widen(Scalar x) {
  return static_cast<float>(x);
}

/// Keys held in shared memory by the reference.
inline constexpr int kMaxReferenceKeys = 5600;

/// out, naive: [rows, heads, value]; lse: [rows, heads].
template <class Scalar>
__global__ void reference_kernel(ReferenceInputs in, AttentionSpan span, double* out, float* naive,
                                 double* lse) {
  extern __shared__ double logits[];
  __shared__ double sums[3];
  const int64_t row = span.q_row + blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / in.heads_per_kv_head;
  const int64_t last = min(span.k_len, span.causal_offset + static_cast<int64_t>(blockIdx.x) + 1);
  const int keys = static_cast<int>(max(int64_t{0}, last));
  const Scalar* q = row_of<Scalar>(in.q, row, head);
  for (int key = static_cast<int>(threadIdx.x); key < keys; key += static_cast<int>(blockDim.x)) {
    const int64_t at = span.k_row + key;
    const Scalar* k = row_of<Scalar>(in.k_nope, at, kv_head);
    const Scalar* rope = row_of<Scalar>(in.k_rope, at, kv_head);
    double dot = 0;
    for (int i = 0; i < in.nope; ++i) dot += double{widen(q[i])} * double{widen(k[i])};
    for (int i = 0; i < in.kRope; ++i) dot += double{widen(q[in.nope + i])} * double{widen(rope[i])};
    logits[key] = dot * in.scale;
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
  const int64_t place = row * in.heads + head;
  for (int column = static_cast<int>(threadIdx.x); column < in.value;
       column += static_cast<int>(blockDim.x)) {
    double exact = 0;
    float rounded = 0;
    for (int key = 0; key < keys; ++key) {
      const Scalar* v = row_of<Scalar>(in.v, span.k_row + key, kv_head);
      const double weight = exp(logits[key] - sums[0]);
      exact += weight * double{widen(v[column])};
      rounded += widen(static_cast<Scalar>(static_cast<float>(weight))) * widen(v[column]);
    }
    out[place * in.value + column] = keys > 0 ? exact / sums[1] : 0.0;
    naive[place * in.value + column] =
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
