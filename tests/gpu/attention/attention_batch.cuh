// Ragged batches of random tensors on the device, and their results against fp64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numbers>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/attention/attention_reference.cuh"
#include "gpu/attention/attention_runner.h"

namespace mlaprefill::sm90 {

inline constexpr int64_t kNotCausal = AttentionSpan::kNotCausal;
inline constexpr uint8_t kGuard = 0xCD;

#define CUDA_OK(call) ASSERT_EQ((call), cudaSuccess) << cudaGetErrorString(cudaGetLastError())

struct Buffer {
  explicit Buffer(int64_t bytes_) : bytes(bytes_) {
    if (cudaMalloc(&data, static_cast<size_t>(bytes)) != cudaSuccess) data = nullptr;
    cudaMemset(data, 0xFF, static_cast<size_t>(bytes));  // NaN in every format used here
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class T>
  std::vector<T> download() const {
    std::vector<T> host(static_cast<size_t>(bytes) / sizeof(T));
    cudaMemcpy(host.data(), data, host.size() * sizeof(T), cudaMemcpyDeviceToHost);
    return host;
  }
  void* data = nullptr;
  int64_t bytes;
};

struct Shape {
  KernelDims dims = KernelDims::k192x128;
  int32_t heads = 3;
  int32_t kv_heads = 3;
  bool plain_k = false;  ///< K in one tensor with per-head rope, instead of nope beside V and shared rope
  float scale = 0.0721688f;
  int64_t nope() const { return dims == KernelDims::k192x128 ? 128 : 192; }
  int64_t value() const { return dims == KernelDims::k192x128 ? 128 : 256; }
  int64_t query() const { return nope() + 64; }
};

/// Tensors of a batch. Rows outside every span, and pads of every row, hold NaN.
template <class Scalar>
class Batch {
 public:
  Batch(const Shape& shape, std::vector<AttentionSpan> spans, uint64_t seed = 1)
      : shape_(shape), spans_(std::move(spans)) {
    for (const AttentionSpan& span : spans_) {
      q_rows_ = std::max(q_rows_, span.q_row + span.q_len + 5);
      k_rows_ = std::max(k_rows_, span.k_row + span.k_len + 5);
    }
    q_row_ = shape.heads * shape.query() + 64;
    const int64_t key = shape.plain_k ? shape.query() : shape.nope();
    kv_row_ = shape.kv_heads * (key + shape.value());
    rope_row_ = 576;
    out_row_ = shape.heads * shape.value() + 8;
    q_ = std::make_unique<Buffer>(q_rows_ * q_row_ * 2);
    kv_ = std::make_unique<Buffer>(k_rows_ * kv_row_ * 2);
    rope_ = std::make_unique<Buffer>(k_rows_ * rope_row_ * 2);
    out_ = std::make_unique<Buffer>(q_rows_ * out_row_ * 4);
    lse_ = std::make_unique<Buffer>(q_rows_ * shape.heads * 4);
    state_out_ = std::make_unique<Buffer>(q_rows_ * shape.heads * shape.value() * 4);
    state_max_ = std::make_unique<Buffer>(q_rows_ * shape.heads * 4);
    state_sum_ = std::make_unique<Buffer>(q_rows_ * shape.heads * 4);
    for (const AttentionSpan& span : spans_) {
      fill(*q_, span.q_row * q_row_, span.q_len * q_row_, seed);
      fill(*kv_, span.k_row * kv_row_, span.k_len * kv_row_, seed + 1);
      fill(*rope_, span.k_row * rope_row_, span.k_len * rope_row_, seed + 2);
    }
    auto* kv = static_cast<Scalar*>(kv_->data);
    args_.q = {q_->data, kDType, {q_rows_, shape.heads, shape.query()}, {q_row_, shape.query(), 1}};
    args_.k = {kv, kDType, {k_rows_, shape.kv_heads, key}, {kv_row_, key + shape.value(), 1}};
    args_.v = {kv + key, kDType, {k_rows_, shape.kv_heads, shape.value()}, {kv_row_, key + shape.value(), 1}};
    if (!shape.plain_k) {
      args_.k_rope = {static_cast<Scalar*>(rope_->data) + 512, kDType, {k_rows_, 64}, {rope_row_, 1}};
    }
    args_.out = {out_->data, kDType, {q_rows_, shape.heads, shape.value()}, {out_row_, shape.value(), 1}};
    args_.lse = {static_cast<float*>(lse_->data), q_rows_};
    args_.state = {static_cast<float*>(state_out_->data), static_cast<float*>(state_max_->data),
                   static_cast<float*>(state_sum_->data)};
    args_.softmax_scale = shape.scale;
  }

  AttentionArgs& args() { return args_; }
  const std::vector<AttentionSpan>& spans() const { return spans_; }

  void poison_results() {
    cudaMemset(out_->data, kGuard, static_cast<size_t>(out_->bytes));
    cudaMemset(lse_->data, kGuard, static_cast<size_t>(lse_->bytes));
  }

  /// The call of other spans on the same tensors.
  AttentionArgs call_of(const std::vector<AttentionSpan>& spans) const {
    AttentionArgs args = args_;
    args.spans = spans;
    return args;
  }

  void run(const std::vector<AttentionSpan>& spans, std::optional<Schedule> schedule = std::nullopt) {
    const auto runner = AttentionRunner::create(call_of(spans), std::move(schedule));
    ASSERT_TRUE(runner.ok()) << runner.status().message();
    num_splits_ = runner.value()->num_splits();
    CUDA_OK(runner.value()->launch(nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  }

  /// Splits of keys in the last run.
  int64_t num_splits() const { return num_splits_; }

  /// Sets all queries.
  void set_queries(float value) {
    const std::vector<Scalar> values(static_cast<size_t>(q_rows_ * q_row_), static_cast<Scalar>(value));
    cudaMemcpy(q_->data, values.data(), values.size() * sizeof(Scalar), cudaMemcpyHostToDevice);
  }

  /// Sets K and V of one key of every head.
  void set_key(int64_t row, float value) {
    const std::vector<Scalar> values(static_cast<size_t>(kv_row_), static_cast<Scalar>(value));
    cudaMemcpy(static_cast<Scalar*>(kv_->data) + row * kv_row_, values.data(), values.size() * sizeof(Scalar),
               cudaMemcpyHostToDevice);
  }

  /// Largest difference from `other`, an earlier out_bytes(), over query rows [begin, end); NaN counts as
  /// infinite.
  double distance(const std::vector<uint8_t>& other, int64_t begin, int64_t end) const {
    const auto now = out_bytes();
    double worst = 0;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t i = 0; i < shape_.heads * shape_.value(); ++i) {
        Scalar a, b;
        std::memcpy(&a, &now[static_cast<size_t>(2 * (row * out_row_ + i))], 2);
        std::memcpy(&b, &other[static_cast<size_t>(2 * (row * out_row_ + i))], 2);
        const double difference =
            std::abs(static_cast<double>(static_cast<float>(a)) - static_cast<float>(b));
        worst = std::max(worst, std::isnan(difference) ? INFINITY : difference);
      }
    }
    return worst;
  }

  std::vector<uint8_t> out_bytes() const { return out_->download<uint8_t>(); }
  std::vector<float> lse() const { return lse_->download<float>(); }

  /// Compares rows of all spans with fp64 and everything else with the guard bytes.
  void check() {
    const int64_t value = shape_.value();
    const int64_t places = q_rows_ * shape_.heads;
    Buffer exact(places * value * 8), naive(places * value * 4), exact_lse(places * 8);
    for (const AttentionSpan& span : spans_) {
      if (span.q_len == 0) continue;
      ASSERT_LE(span.k_len, kMaxReferenceKeys);
      const dim3 grid(static_cast<unsigned>(span.q_len), static_cast<unsigned>(shape_.heads));
      reference_kernel<Scalar><<<grid, 128, static_cast<size_t>(span.k_len + 1) * 8>>>(
          ReferenceInputs(args_), span, static_cast<double*>(exact.data), static_cast<float*>(naive.data),
          static_cast<double*>(exact_lse.data));
    }
    CUDA_OK(cudaDeviceSynchronize());
    const auto want = exact.download<double>();
    const auto plain = naive.download<float>();
    const auto want_lse = exact_lse.download<double>();
    auto bytes = out_bytes();
    auto lse_values = lse();

    double naive_error = 0;
    for (const AttentionSpan& span : spans_) {
      for (int64_t i = span.q_row * shape_.heads * value;
           i < (span.q_row + span.q_len) * shape_.heads * value; ++i) {
        naive_error = std::max(
            naive_error, std::abs(double{plain[static_cast<size_t>(i)]} - want[static_cast<size_t>(i)]));
      }
    }
    const double step = kDType == DType::kBF16 ? 0x1p-8 : 0x1p-11;
    const bool f32_out = args_.out.dtype == DType::kF32;
    const double lse_unit = args_.lse.base == LseBase::kLog2 ? std::numbers::log2e : 1.0;
    double worst = 0, worst_lse = 0;
    int64_t wrong = 0;
    const int64_t size = f32_out ? 4 : 2;
    for (const AttentionSpan& span : spans_) {
      for (int64_t row = span.q_row; row < span.q_row + span.q_len; ++row) {
        for (int64_t head = 0; head < shape_.heads; ++head) {
          for (int64_t column = 0; column < value; ++column) {
            const size_t at = static_cast<size_t>((row * out_row_ + head * value + column) * size);
            float got;
            if (f32_out) {
              std::memcpy(&got, &bytes[at], 4);
            } else {
              Scalar scalar;
              std::memcpy(&scalar, &bytes[at], 2);
              got = static_cast<float>(scalar);
            }
            std::memset(&bytes[at], kGuard, static_cast<size_t>(size));
            const double expected = want[static_cast<size_t>((row * shape_.heads + head) * value + column)];
            const double error = std::abs(double{got} - expected);
            const double limit = 2 * naive_error + step * std::abs(expected);
            if (!(error <= limit) && ++wrong <= 3) {
              ADD_FAILURE() << "row " << row - span.q_row << " of " << span.q_len << " x " << span.k_len
                            << " offset " << span.causal_offset << " head " << head << " column " << column
                            << ": got " << got << ", want " << expected << ", limit " << limit;
            }
            worst = std::max(worst, error);
          }
          const size_t at = static_cast<size_t>(row * args_.lse.token_stride + head * args_.lse.head_stride);
          const double expected = want_lse[static_cast<size_t>(row * shape_.heads + head)] * lse_unit;
          const double got = double{lse_values[at]};
          std::memset(&lse_values[at], kGuard, 4);
          const double error = expected == got ? 0.0 : std::abs(got - expected);
          worst_lse = std::max(worst_lse, error);
          if (!(error <= 4e-6 * std::max(1.0, std::abs(expected))) && ++wrong <= 3) {
            ADD_FAILURE() << "LSE of row " << row - span.q_row << " of " << span.q_len << " x " << span.k_len
                          << " head " << head << ": got " << got << ", want " << expected;
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0);
    int64_t touched = 0;
    for (uint8_t byte : bytes) touched += byte != kGuard;
    std::vector<uint8_t> lse_bytes(lse_values.size() * 4);
    std::memcpy(lse_bytes.data(), lse_values.data(), lse_bytes.size());
    for (uint8_t byte : lse_bytes) touched += byte != kGuard;
    EXPECT_EQ(touched, 0) << "bytes outside the spans were written";
    std::printf("    worst error %.2e (naive %.2e), LSE %.2e\n", worst, naive_error, worst_lse);
  }

 private:
  static constexpr DType kDType = std::is_same_v<Scalar, __half> ? DType::kF16 : DType::kBF16;

  void fill(const Buffer& buffer, int64_t begin, int64_t count, uint64_t seed) {
    if (count == 0) return;
    fill_random<<<static_cast<unsigned>(std::min<int64_t>((count + 255) / 256, 4096)), 256>>>(
        static_cast<Scalar*>(buffer.data) + begin, count, seed);
  }

  Shape shape_;
  std::vector<AttentionSpan> spans_;
  int64_t q_rows_ = 0, k_rows_ = 0, q_row_ = 0, kv_row_ = 0, rope_row_ = 0, out_row_ = 0;
  std::unique_ptr<Buffer> q_, kv_, rope_, out_, lse_, state_out_, state_max_, state_sum_;
  AttentionArgs args_;
  int64_t num_splits_ = 0;
};

/// Spans with gaps of poisoned rows between them.
inline std::vector<AttentionSpan> place(const std::vector<std::pair<int64_t, int64_t>>& lengths,
                                        bool causal) {
  std::vector<AttentionSpan> spans;
  int64_t q_row = 3, k_row = 2;
  for (const auto& [q_len, k_len] : lengths) {
    AttentionSpan span;
    span.q_row = q_row;
    span.q_len = q_len;
    span.k_row = k_row;
    span.k_len = k_len;
    span.causal_offset = causal ? k_len - q_len : kNotCausal;
    spans.push_back(span);
    q_row += q_len + (spans.size() % 3 == 0 ? 2 : 0);
    k_row += k_len + (spans.size() % 2 == 0 ? 1 : 0);
  }
  return spans;
}

/// Returns how many splits of keys there were.
template <class Scalar>
int64_t check_batch(const Shape& shape, std::vector<AttentionSpan> spans) {
  Batch<Scalar> batch(shape, std::move(spans));
  batch.poison_results();
  batch.run(batch.spans());
  batch.check();
  return batch.num_splits();
}

}  // namespace mlaprefill::sm90
