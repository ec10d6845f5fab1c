// The Hopper attention kernel against fp64 on ragged adversarial batches. Needs an H100 or H200.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numbers>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/attention/attention_reference.cuh"
#include "gpu/attention/attention_runner.h"

namespace mlaprefill::sm90 {
namespace {

constexpr int64_t kNotCausal = AttentionSpan::kNotCausal;
constexpr uint8_t kGuard = 0xCD;

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

  void run(const std::vector<AttentionSpan>& spans) {
    AttentionArgs args = args_;
    args.spans = spans;
    const auto runner = AttentionRunner::create(args);
    ASSERT_TRUE(runner.ok()) << runner.status().message();
    CUDA_OK(runner.value()->launch(nullptr));
    CUDA_OK(cudaDeviceSynchronize());
  }

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
};

/// Spans with gaps of poisoned rows between them.
std::vector<AttentionSpan> place(const std::vector<std::pair<int64_t, int64_t>>& lengths, bool causal) {
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

std::vector<std::pair<int64_t, int64_t>> adversarial() {
  std::vector<std::pair<int64_t, int64_t>> lengths;
  for (int64_t q : {0, 1, 7, 63, 64, 65, 127, 128, 129, 130, 191, 200, 256, 257, 300}) {
    for (int64_t k : {0, 1, 63, 64, 65, 127, 128, 129, 256, 300, 513}) lengths.emplace_back(q, k);
  }
  return lengths;
}

template <class Scalar>
void check_batch(const Shape& shape, std::vector<AttentionSpan> spans) {
  Batch<Scalar> batch(shape, std::move(spans));
  batch.poison_results();
  batch.run(batch.spans());
  batch.check();
}

TEST(AttentionKernel, AdversarialCausal) { check_batch<__nv_bfloat16>({}, place(adversarial(), true)); }
TEST(AttentionKernel, AdversarialFull) { check_batch<__nv_bfloat16>({}, place(adversarial(), false)); }
TEST(AttentionKernel, AdversarialHalf) {
  check_batch<__half>({.heads = 1, .kv_heads = 1}, place(adversarial(), true));
}
TEST(AttentionKernel, WideDims) {
  const Shape shape{.dims = KernelDims::k256x256, .scale = 0.0625f};
  check_batch<__nv_bfloat16>(shape, place(adversarial(), true));
  check_batch<__nv_bfloat16>(shape, place(adversarial(), false));
}
TEST(AttentionKernel, WideDimsHalf) {
  check_batch<__half>({.dims = KernelDims::k256x256, .heads = 2, .kv_heads = 2, .scale = 0.0625f},
                      place(adversarial(), true));
}
TEST(AttentionKernel, HeadCounts) {
  for (int32_t heads : {1, 2, 5, 10, 20, 40, 128}) {
    check_batch<__nv_bfloat16>({.heads = heads, .kv_heads = heads},
                               place({{130, 200}, {64, 64}, {1, 129}, {0, 5}, {300, 1000}, {100, 37}}, true));
  }
}
TEST(AttentionKernel, PlainKeysSharedByHeads) {
  for (int32_t kv_heads : {1, 2, 10}) {
    check_batch<__nv_bfloat16>({.heads = 10, .kv_heads = kv_heads, .plain_k = true},
                               place({{130, 200}, {64, 64}, {1, 129}, {300, 1000}, {100, 37}}, true));
  }
}
TEST(AttentionKernel, LongRows) {
  check_batch<__nv_bfloat16>({}, place({{1000, 5000}, {700, 3001}, {33, 5100}}, true));
  check_batch<__nv_bfloat16>({}, place({{300, 5000}, {700, 3001}, {33, 5100}}, false));
}
TEST(AttentionKernel, LargeLogits) {
  check_batch<__nv_bfloat16>({.scale = 1.5f}, place({{300, 2000}, {700, 701}, {33, 1500}}, true));
}
/// Logits below zero that rise by 9 with each key tile, by 140 in all.
template <class Scalar>
void check_rising_negative_logits() {
  Batch<Scalar> batch({}, place({{70, 2000}, {2000, 2000}}, true));
  batch.set_queries(1.0f);
  for (const AttentionSpan& span : batch.spans()) {
    for (int64_t key = 0; key < span.k_len; ++key) {
      batch.set_key(span.k_row + key, -16.0f + static_cast<float>(key) / 128);
    }
  }
  batch.poison_results();
  batch.run(batch.spans());
  batch.check();
}
TEST(AttentionKernel, RisingNegativeLogits) {
  check_rising_negative_logits<__nv_bfloat16>();
  check_rising_negative_logits<__half>();
}

/// Rows before a key that is not finite must not notice it, those that see it must, other requests never.
template <class Scalar>
void check_key_behind_the_mask(const Shape& shape, float value) {
  const auto spans = place({{300, 1000}, {200, 200}, {64, 64}, {130, 513}}, true);
  for (int64_t seen_from : {0, 1, 62, 150, 199}) {
    Batch<Scalar> batch(shape, spans);
    batch.poison_results();
    batch.run(spans);
    const auto clean = batch.out_bytes();
    const AttentionSpan& span = spans[1];
    batch.set_key(span.k_row + seen_from, value);
    batch.poison_results();
    batch.run(spans);
    EXPECT_EQ(batch.distance(clean, spans[0].q_row, spans[0].q_row + 300), 0);
    EXPECT_EQ(batch.distance(clean, spans[2].q_row, spans[3].q_row + 130), 0);
    EXPECT_LE(batch.distance(clean, span.q_row, span.q_row + seen_from), 0.03);
    for (int64_t row = seen_from; row < 200; row += 7) {
      EXPECT_EQ(batch.distance(clean, span.q_row + row, span.q_row + row + 1), INFINITY) << "row " << row;
    }
  }
}
TEST(AttentionKernel, KeysThatAreNotFiniteBehindTheMask) {
  check_key_behind_the_mask<__nv_bfloat16>({}, NAN);
  check_key_behind_the_mask<__nv_bfloat16>({}, INFINITY);
  check_key_behind_the_mask<__half>({}, NAN);
  check_key_behind_the_mask<__nv_bfloat16>({.dims = KernelDims::k256x256, .scale = 0.0625f}, NAN);
}

TEST(AttentionKernel, Float32OutputAndOtherLseViews) {
  Batch<__nv_bfloat16> batch({}, place({{130, 200}, {64, 64}, {1, 129}, {300, 1000}, {100, 37}}, true));
  batch.args().out.dtype = DType::kF32;
  batch.args().lse.token_stride = 3;
  batch.args().lse.head_stride = 1;
  batch.args().lse.base = LseBase::kLog2;
  batch.poison_results();
  batch.run(batch.spans());
  batch.check();
}
TEST(AttentionKernel, ManyRequests) {
  std::vector<std::pair<int64_t, int64_t>> lengths;
  for (int64_t i = 0; i < 70000; ++i) lengths.emplace_back(1, i % 4);
  check_batch<__nv_bfloat16>({.heads = 1, .kv_heads = 1}, place(lengths, true));
}
TEST(AttentionKernel, MoreThanTwoToThe31Elements) {
  auto spans = place({{64, 700}, {200, 300}}, true);
  for (AttentionSpan& span : spans) span.k_row += 70000;
  check_batch<__nv_bfloat16>({.heads = 128, .kv_heads = 128}, spans);
}

/// A request's keys in several launches, cut at multiples of the key tile, must give the bits of one launch.
void check_carried_state(const Shape& shape, bool causal) {
  const auto whole = place({{300, 1000}, {64, 700}, {130, 513}, {1, 400}, {200, 90}, {129, 129}}, causal);
  Batch<__nv_bfloat16> batch(shape, whole);
  batch.poison_results();
  batch.run(whole);
  batch.check();
  const auto out = batch.out_bytes();
  const auto lse = batch.lse();
  for (int64_t cut : {128, 256, 384}) {
    batch.poison_results();
    for (int64_t begin = 0; begin < 1000; begin += cut) {
      std::vector<AttentionSpan> pass;
      for (AttentionSpan span : whole) {
        if (begin > 0 && begin >= span.k_len) continue;
        const int64_t end = std::min(span.k_len, begin + cut);
        span.store_state = end < span.k_len;
        span.resume = begin > 0;
        span.k_row += begin;
        span.k_len = end - begin;
        if (causal) span.causal_offset -= begin;
        pass.push_back(span);
      }
      batch.run(pass);
    }
    EXPECT_TRUE(batch.out_bytes() == out) << "cut every " << cut;
    const auto again = batch.lse();
    EXPECT_EQ(std::memcmp(again.data(), lse.data(), lse.size() * 4), 0) << "cut every " << cut;
  }
}
TEST(AttentionKernel, CarriedStateIsBitwise) {
  check_carried_state({}, true);
  check_carried_state({}, false);
  check_carried_state({.scale = 1.5f}, true);
}
TEST(AttentionKernel, CarriedStateIsBitwiseWide) {
  check_carried_state({.dims = KernelDims::k256x256, .scale = 0.0625f}, true);
}

TEST(AttentionKernel, RepeatsAreBitwise) {
  Batch<__nv_bfloat16> batch(
      {.heads = 16, .kv_heads = 16},
      place({{1000, 3000}, {700, 700}, {33, 5100}, {64, 64}, {128, 1280}, {500, 2000}}, true));
  batch.poison_results();
  batch.run(batch.spans());
  const auto out = batch.out_bytes();
  for (int i = 0; i < 50; ++i) {
    batch.poison_results();
    batch.run(batch.spans());
    ASSERT_TRUE(batch.out_bytes() == out) << "repeat " << i;
  }
}

/// A request alone gives the bits it gives among others.
TEST(AttentionKernel, NeighboursDoNotMatter) {
  const auto spans = place({{300, 1000}, {64, 700}, {130, 513}, {1, 400}}, true);
  Batch<__nv_bfloat16> batch({}, spans);
  batch.poison_results();
  batch.run(spans);
  const auto together = batch.out_bytes();
  batch.poison_results();
  for (const AttentionSpan& span : spans) batch.run({span});
  EXPECT_TRUE(batch.out_bytes() == together);
}

}  // namespace
}  // namespace mlaprefill::sm90
