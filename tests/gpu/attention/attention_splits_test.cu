// Keys of one request split between clusters: few items, or the last of many. Needs an H100 or H200.
#include <cmath>
#include <utility>
#include <vector>

#include "gpu/attention/attention_batch.cuh"

namespace mlaprefill::sm90 {
namespace {

template <class Scalar>
void check_splits(const Shape& shape, const std::vector<AttentionSpan>& spans) {
  EXPECT_GT(check_batch<Scalar>(shape, spans), 0);
}

/// One, two and four heads an item, with rows and heads that leave blocks of an item empty.
TEST(AttentionSplits, AgainstFp64) {
  for (const bool causal : {true, false}) {
    for (const int64_t rows : {1, 64, 65, 100, 129, 200, 256, 700}) {
      check_splits<__nv_bfloat16>({}, place({{rows, 5100}}, causal));
    }
    for (const int32_t heads : {1, 2, 5, 16}) {
      check_splits<__nv_bfloat16>({.heads = heads, .kv_heads = heads},
                                  place({{100, 4000}, {0, 10}, {30, 5001}, {64, 64}}, causal));
    }
    check_splits<__half>({}, place({{100, 4000}, {0, 10}, {300, 5001}, {64, 64}}, causal));
    check_splits<__nv_bfloat16>({.dims = KernelDims::k256x256, .scale = 0.0625f},
                                place({{100, 4000}, {0, 10}, {300, 5001}, {64, 64}}, causal));
    check_splits<__nv_bfloat16>({.heads = 10, .kv_heads = 2, .plain_k = true}, place({{130, 5000}}, causal));
  }
}

/// Runs a batch whose first entries are whole and whose last are split, for the heads from item `first_head`
/// on.
void run_last_wave(Batch<__nv_bfloat16>& batch, const std::vector<AttentionSpan>& spans, int32_t first_head) {
  const Schedule schedule = schedule_call(batch.call_of(spans), 198);
  EXPECT_EQ(num_kv_splits_of(schedule.entries[0].flags), 0);
  EXPECT_GT(schedule.kv_splits, 0);
  EXPECT_EQ(schedule.sections[first_head > 0 ? 2 : 1].first_head_item, first_head);
  batch.run(spans, schedule);
}

void check_last_wave(const Shape& shape, const std::vector<AttentionSpan>& spans, int32_t first_head) {
  Batch<__nv_bfloat16> batch(shape, spans);
  batch.poison_results();
  run_last_wave(batch, spans, first_head);
  batch.check();
}

/// One, two and four heads an item.
TEST(AttentionSplits, TheLastWave) {
  check_last_wave({.heads = 40, .kv_heads = 40}, place({{1180, 4059}}, false), 20);
  check_last_wave({.heads = 40, .kv_heads = 10}, place({{1180, 4059}}, false), 20);
  check_last_wave({.dims = KernelDims::k256x256, .heads = 40, .kv_heads = 40, .scale = 0.0625f},
                  place({{1180, 4059}}, false), 20);
  const std::vector<std::pair<int64_t, int64_t>> ten(10, {100, 4059}), five(5, {100, 4059}),
      low(5, {60, 4059});
  check_last_wave({.heads = 40, .kv_heads = 40}, place(ten, true), 0);
  check_last_wave({.heads = 80, .kv_heads = 80}, place(five, true), 20);
  check_last_wave({.heads = 160, .kv_heads = 80}, place(low, true), 0);
}

/// A span's first `keys` keys, whose state is carried, and the others.
std::pair<AttentionSpan, AttentionSpan> cut_at(const AttentionSpan& whole, int64_t keys) {
  AttentionSpan first = whole;
  first.k_len = keys;
  first.store_state = true;
  AttentionSpan second = whole;
  second.k_row += keys;
  second.k_len -= keys;
  if (whole.causal_offset != kNotCausal) second.causal_offset -= keys;
  second.resume = true;
  return {first, second};
}

/// The state leaves with the last wave, or enters with it.
TEST(AttentionSplits, TheLastWaveCarriesState) {
  const AttentionSpan whole = place({{1180, 5504}}, false)[0];
  for (const int64_t cut : {4096, 1408}) {
    Batch<__nv_bfloat16> batch({.heads = 40, .kv_heads = 40}, {whole});
    batch.poison_results();
    const auto [first, second] = cut_at(whole, cut);
    if (cut == 4096) {
      run_last_wave(batch, {first}, 20);
      batch.run({second});
    } else {
      batch.run({first});
      run_last_wave(batch, {second}, 20);
    }
    batch.check();
  }
}

/// Large logits, and keys whose greatest lie in any split.
TEST(AttentionSplits, MaximaAnywhere) {
  check_splits<__nv_bfloat16>({.scale = 1.5f}, place({{256, 5100}, {2048, 2048}}, true));
  Batch<__nv_bfloat16> batch({}, place({{70, 5000}}, true));
  batch.set_queries(1.0f);
  for (int64_t key = 0; key < 5000; ++key) {
    batch.set_key(batch.spans()[0].k_row + key, -16.0f + static_cast<float>(key % 1000) / 64);
  }
  batch.poison_results();
  batch.run(batch.spans());
  EXPECT_GT(batch.num_splits(), 0);
  batch.check();
}

/// Rows that see nothing of one of their splits: no schedule has such yet, but the merge allows for them.
TEST(AttentionSplits, RowsWithoutAKeyInASplit) {
  Batch<__nv_bfloat16> batch({}, place({{256, 1100}}, true));
  Schedule schedule = schedule_call(batch.call_of(batch.spans()), 0);
  ASSERT_EQ(schedule.entries.size(), 1U);
  schedule.kv_splits = 2 * schedule.sections[0].items_per_entry;
  AttentionEntry first = schedule.entries[0];
  AttentionEntry second = first;
  constexpr int32_t kCut = 1024;  // row 179 sees it first
  first.kv_len = kCut;
  first.flags |= 2 << AttentionEntry::kNumSplitsShift;
  second.kv_row += kCut;
  second.kv_len -= kCut;
  second.causal_offset -= kCut;
  second.flags |= 2 << AttentionEntry::kNumSplitsShift | 1 << AttentionEntry::kSplitIndexShift;
  schedule.entries = {first, second};
  schedule.sections[0].entry_count = 2;
  schedule.sections[0].item_end = schedule.sections[1].item_end = static_cast<uint32_t>(schedule.kv_splits);
  batch.poison_results();
  batch.run(batch.spans(), schedule);
  EXPECT_EQ(batch.num_splits(), 2);
  batch.check();
}

TEST(AttentionSplits, Float32Output) {
  Batch<__nv_bfloat16> batch({}, place({{130, 5000}}, true));
  batch.args().out.dtype = DType::kF32;
  batch.poison_results();
  batch.run(batch.spans());
  EXPECT_GT(batch.num_splits(), 0);
  batch.check();
}

/// The carried state enters by the first split and leaves with the last one to finish.
TEST(AttentionSplits, CarriedState) {
  const AttentionSpan whole = place({{130, 5100}}, true)[0];
  Batch<__nv_bfloat16> batch({}, {whole});
  batch.poison_results();
  const auto [first, second] = cut_at(whole, 2500);
  batch.run({first});
  EXPECT_GT(batch.num_splits(), 0);
  batch.run({second});
  EXPECT_GT(batch.num_splits(), 0);
  batch.check();
}

TEST(AttentionSplits, KeysThatAreNotFinite) {
  const auto spans = place({{200, 5000}}, true);
  for (const int64_t key : {4801, 4900, 4999}) {
    Batch<__nv_bfloat16> batch({}, spans);
    batch.poison_results();
    batch.run(spans);
    EXPECT_GT(batch.num_splits(), 0);
    const auto clean = batch.out_bytes();
    batch.set_key(spans[0].k_row + key, NAN);
    batch.poison_results();
    batch.run(spans);
    const int64_t first = spans[0].q_row + key - 4800;
    EXPECT_LE(batch.distance(clean, spans[0].q_row, first), 0.03);
    for (int64_t row = first; row < spans[0].q_row + 200; row += 7) {
      EXPECT_EQ(batch.distance(clean, row, row + 1), INFINITY) << "row " << row;
    }
  }
}

/// Whichever split finishes last, and again and again over the same counters.
TEST(AttentionSplits, RepeatsAreBitwise) {
  const auto spans = place({{100, 5100}, {30, 5000}, {300, 3000}}, true);
  Batch<__nv_bfloat16> batch({.heads = 16, .kv_heads = 16}, spans);
  const auto runner = AttentionRunner::create(batch.call_of(spans));
  ASSERT_TRUE(runner.ok()) << runner.status().message();
  EXPECT_GT(runner.value()->num_splits(), 0);
  std::vector<uint8_t> out;
  for (int i = 0; i < 50; ++i) {
    batch.poison_results();
    CUDA_OK(runner.value()->launch(nullptr));
    CUDA_OK(cudaDeviceSynchronize());
    if (i == 0) out = batch.out_bytes();
    ASSERT_TRUE(batch.out_bytes() == out) << "repeat " << i;
  }
  batch.check();
}

}  // namespace
}  // namespace mlaprefill::sm90
