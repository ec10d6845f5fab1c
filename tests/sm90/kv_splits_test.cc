// Which keys are split between clusters, and that every key is still seen once.
#include "backend/sm90/kv_splits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <vector>

#include "backend/sm90/metadata.h"
#include "backend/sm90/small_metadata.h"
#include "plan/kv_splits.h"
#include "sm90/ragged_call.h"

namespace mlaprefill::sm90 {
namespace {

constexpr int64_t kMostSplits = 198;  // of 132 SMs

/// How many splits each request's first tile has; 0: none.
std::vector<int32_t> splits_by_request(const std::vector<Request>& requests, int64_t heads,
                                       bool causal = true) {
  const auto spans = spans_of(requests, causal);
  std::vector<int32_t> found;
  for (const AttentionSpan& span : spans) {
    for (const AttentionEntry& entry : schedule_call(args_of(spans, heads), kMostSplits).entries) {
      if (entry.q_row == span.q_row && kv_split_index_of(entry.flags) == 0)
        found.push_back(num_kv_splits_of(entry.flags));
    }
  }
  return found;
}

TEST(Sm90KvSplits, FewItemsAreSpreadOverTheClusters) {
  EXPECT_EQ(splits_by_request({{512, 33280}}, 16), std::vector<int32_t>{2});   // 32 items
  EXPECT_EQ(splits_by_request({{64, 100064}}, 16), std::vector<int32_t>{16});  // 4 items
  EXPECT_EQ(splits_by_request({{64, 100000}}, 1, false), std::vector<int32_t>{32});
}

TEST(Sm90KvSplits, OneLongRequestAmongMuchWorkIsSplit) {
  const auto splits = splits_by_request({{8128, 8128}, {64, 100064}}, 16);
  EXPECT_EQ(splits[0], 0);
  EXPECT_GT(splits[1], 1);
}

TEST(Sm90KvSplits, WhatFillsTheDeviceIsNotSplit) {
  EXPECT_EQ(splits_by_request({{8192, 8192}}, 16), std::vector<int32_t>{0});
  EXPECT_EQ(splits_by_request({{512, 33280}}, 128), std::vector<int32_t>{0});
  EXPECT_EQ(splits_by_request(std::vector<Request>(32, {64, 2112}), 16), std::vector<int32_t>(32, 0));
}

TEST(Sm90KvSplits, ShortKeysAreNotSplit) {
  EXPECT_EQ(splits_by_request({{1, 896}}, 1), std::vector<int32_t>{0});
  const auto spans = spans_of({{1, 896}, {0, 5000}}, true);
  EXPECT_EQ(lay_out_call(args_of(spans, 1), kMostSplits).max_kv_splits, 0);
}

TEST(Sm90KvSplits, NotInInvariantMode) {
  const auto spans = spans_of({{64, 100064}}, true);
  AttentionArgs args = args_of(spans, 16);
  EXPECT_EQ(lay_out_call(args, kMostSplits).max_kv_splits, kMostSplits);
  args.invariant = true;
  EXPECT_EQ(lay_out_call(args, kMostSplits).max_kv_splits, 0);
  EXPECT_EQ(schedule_call(args, 0).entries.size(), 1U);
}

TEST(Sm90KvSplits, TheStateEntersWithTheFirstSplitAlone) {
  auto spans = spans_of({{64, 100064}}, true);
  spans[0].resume = spans[0].store_state = true;
  const auto entries = schedule_call(args_of(spans, 16), kMostSplits).entries;
  ASSERT_GT(entries.size(), 1U);
  for (const AttentionEntry& entry : entries) {
    EXPECT_EQ((entry.flags & AttentionEntry::kResume) != 0, kv_split_index_of(entry.flags) == 0);
    EXPECT_NE(entry.flags & AttentionEntry::kStoreState, 0);
  }
}

/// Random batches: the splits of a tile are its keys cut at key tiles, and no two items share a partial or
/// counters.
TEST(Sm90KvSplits, EveryKeyIsSeenOnceAndPartialsAreApart) {
  std::mt19937 random(7);
  const auto pick = [&random](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  int64_t with_splits = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<Request> requests;
    const int64_t count = pick(1, 6);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t fresh = pick(0, 1) == 0 ? pick(0, 80) : pick(0, 1500);
      requests.push_back({fresh, pick(0, 2) == 0 ? pick(0, 120'000) : pick(0, 9000)});
    }
    const int64_t heads = std::array<int64_t, 6>{1, 3, 8, 16, 40, 128}[static_cast<size_t>(pick(0, 5))];
    const auto spans = spans_of(requests, round % 2 == 0);
    const AttentionArgs args = args_of(spans, heads);
    const auto whole = schedule_call(args, 0).entries;
    const CallSchedule schedule = schedule_call(args, kMostSplits);
    const auto& entries = schedule.entries;
    EXPECT_LE(schedule.size_bytes(), lay_out_call(args, kMostSplits).metadata_bytes);
    std::map<int32_t, std::vector<AttentionEntry>> by_row;
    for (const AttentionEntry& entry : entries) by_row[entry.q_row].push_back(entry);
    ASSERT_EQ(by_row.size(), whole.size());

    std::vector<bool> partial_taken(kMostSplits), counters_taken(kMostSplits / 2);
    for (const AttentionEntry& tile : whole) {
      auto& parts = by_row[tile.q_row];
      if (parts.size() == 1) {
        EXPECT_EQ(num_kv_splits_of(parts[0].flags), 0);
        continue;
      }
      ++with_splits;
      std::sort(parts.begin(), parts.end(),
                [](const AttentionEntry& a, const AttentionEntry& b) { return a.kv_row < b.kv_row; });
      int32_t next = tile.kv_row;
      for (size_t i = 0; i < parts.size(); ++i) {
        const AttentionEntry& part = parts[i];
        EXPECT_EQ(kv_split_index_of(part.flags), static_cast<int32_t>(i));
        EXPECT_EQ(num_kv_splits_of(part.flags), static_cast<int32_t>(parts.size()));
        EXPECT_EQ(part.kv_row, next);
        EXPECT_EQ((part.kv_row - tile.kv_row) % kKeyTileTokens, 0);
        EXPECT_GE(visible_keys(part), (kMinSplitKeyTiles - 1) * kKeyTileTokens + 1);
        if (tile.causal_offset != AttentionEntry::kNotCausal) {
          EXPECT_EQ(part.causal_offset + part.kv_row, tile.causal_offset + tile.kv_row);
        }
        next += part.kv_len;
      }
      EXPECT_EQ(next, tile.kv_row + tile.kv_len);
      const auto splits = static_cast<int32_t>(parts.size());
      for (int32_t item = 0; item < items_per_entry(tile, static_cast<int32_t>(heads)); ++item) {
        const int32_t first = first_partial_of(parts[0].flags) + item * splits;
        ASSERT_LE(first + splits, kMostSplits);
        EXPECT_FALSE(counters_taken[static_cast<size_t>(first / 2)]);
        counters_taken[static_cast<size_t>(first / 2)] = true;
        for (int32_t s = 0; s < splits; ++s) {
          EXPECT_FALSE(partial_taken[static_cast<size_t>(first + s)]);
          partial_taken[static_cast<size_t>(first + s)] = true;
        }
      }
    }
  }
  EXPECT_GT(with_splits, 100);
}

/// Keys are not split if that alone would keep a call from being captured.
TEST(Sm90KvSplits, SchedulesOfCallsStaySmall) {
  const auto spans = spans_of({{8128, 8128}, {64, 100064}}, true);
  const CallSchedule whole = schedule_call(args_of(spans, 1), 0);
  auto split = whole.entries;
  split_keys(split, 1, kMostSplits);
  ASSERT_GT(split.size(), whole.entries.size());
  ASSERT_GT((CallSchedule{split, kMostSplits}.size_bytes()), kSmallMetadataBytes);
  EXPECT_LE(schedule_call(args_of(spans, 1), kMostSplits).size_bytes(), kSmallMetadataBytes);

  auto many = std::vector<Request>(120, {1, 1000});
  many.push_back({64, 100064});
  const auto large = spans_of(many, true);
  ASSERT_GT(schedule_call(args_of(large, 1), 0).size_bytes(), kSmallMetadataBytes);
  EXPECT_GT(schedule_call(args_of(large, 1), kMostSplits).entries.size(), many.size());
}

TEST(Sm90KvSplits, RoomForNoneWhereNoneAreMade) {
  const auto spans = spans_of({{8192, 8192}}, true);
  EXPECT_EQ(schedule_call(args_of(spans, 16), kMostSplits).max_kv_splits, 0);
}

}  // namespace
}  // namespace mlaprefill::sm90
