// The Hopper attention kernel against fp64 on ragged adversarial batches. Needs an H100 or H200.
#include <cstring>
#include <utility>
#include <vector>

#include "gpu/attention/attention_batch.cuh"

namespace mlaprefill::sm90 {
namespace {

std::vector<std::pair<int64_t, int64_t>> adversarial() {
  std::vector<std::pair<int64_t, int64_t>> lengths;
  for (int64_t q : {0, 1, 7, 63, 64, 65, 127, 128, 129, 130, 191, 200, 256, 257, 300}) {
    for (int64_t k : {0, 1, 63, 64, 65, 127, 128, 129, 256, 300, 513}) lengths.emplace_back(q, k);
  }
  return lengths;
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
  batch.args().invariant = true;
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

/// Rows whose carried state holds no key yet, their logits of either sign or all far below zero.
TEST(AttentionKernel, CarriedStateWithoutAKey) {
  for (const bool negative : {false, true}) {
    AttentionSpan span = place({{130, 700}}, false)[0];
    Batch<__nv_bfloat16> batch({}, {span});
    if (negative) {
      batch.set_queries(1.0f);
      for (int64_t key = 0; key < span.k_len; ++key) {
        batch.set_key(span.k_row + key, -16.0f + static_cast<float>(key) / 64);
      }
    }
    AttentionSpan before = span;
    before.causal_offset = -span.q_len;
    before.store_state = true;
    span.resume = true;
    batch.poison_results();
    batch.run({before});
    batch.run({span});
    batch.check();
  }
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
  const auto spans = place({{300, 5000}, {64, 700}, {130, 513}, {1, 4000}}, true);
  Batch<__nv_bfloat16> batch({}, spans);
  batch.args().invariant = true;
  batch.poison_results();
  batch.run(spans);
  const auto together = batch.out_bytes();
  batch.poison_results();
  for (const AttentionSpan& span : spans) batch.run({span});
  EXPECT_TRUE(batch.out_bytes() == together);
}

}  // namespace
}  // namespace mlaprefill::sm90
