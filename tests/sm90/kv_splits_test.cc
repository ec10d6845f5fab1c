// Which keys are split between clusters, and that every key is still seen once.
#include "backend/sm90/kv_splits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <utility>
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

/// One work item: a head item of an entry.
struct Item {
  AttentionEntry entry;
  int32_t first_partial;
};

/// Items by first row and head item, taken one after the other as the kernel does.
std::map<std::pair<int32_t, int32_t>, std::vector<Item>> items_of(const Schedule& schedule) {
  std::map<std::pair<int32_t, int32_t>, std::vector<Item>> items;
  int32_t begin = 0;
  for (const AttentionSection& section : schedule.sections) {
    const auto end = static_cast<int32_t>(section.item_end);
    for (int32_t local = 0; local < end - begin; ++local) {
      const int32_t group = local / (section.entry_count * section.group_items) * section.group_items;
      const int32_t in_group = local - group * section.entry_count;
      const int32_t heads = std::min(section.group_items, section.items_per_entry - group);
      const int32_t head = section.first_head_item + group + in_group % heads;
      const AttentionEntry& entry =
          schedule.entries[static_cast<size_t>(section.entry_begin + in_group / heads)];
      const int32_t partial =
          (first_partial_of(entry.flags) + head * num_kv_splits_of(entry.flags)) % kMaxSplitsPerLaunch;
      items[{entry.q_row, head}].push_back({entry, partial});
    }
    begin = end;
  }
  return items;
}

/// The splits of each item are its keys cut at key tiles, and no two items share a partial or counters.
void expect_every_key_once(const AttentionArgs& args) {
  const auto whole = items_of(schedule_call(args, 0));
  const Schedule schedule = schedule_call(args, kMostSplits);
  auto items = items_of(schedule);
  EXPECT_LE(call_metadata_bytes(schedule), lay_out_call(args, kMostSplits).metadata_bytes);
  ASSERT_EQ(items.size(), whole.size());
  const auto room = static_cast<size_t>(schedule.kv_splits);
  std::vector<bool> partial_taken(room), counters_taken(room / 2);
  for (const auto& [place, one] : whole) {
    ASSERT_EQ(one.size(), 1U);
    const AttentionEntry& tile = one[0].entry;
    auto& parts = items[place];
    if (parts.size() == 1) {
      EXPECT_EQ(num_kv_splits_of(parts[0].entry.flags), 0);
      continue;
    }
    std::sort(parts.begin(), parts.end(),
              [](const Item& a, const Item& b) { return a.entry.kv_row < b.entry.kv_row; });
    const auto splits = static_cast<int32_t>(parts.size());
    const int32_t first = parts[0].first_partial;
    ASSERT_LE(first + splits, schedule.kv_splits);
    EXPECT_FALSE(counters_taken[static_cast<size_t>(first / 2)]);
    counters_taken[static_cast<size_t>(first / 2)] = true;
    int32_t next = tile.kv_row;
    for (int32_t i = 0; i < splits; ++i) {
      const AttentionEntry& part = parts[static_cast<size_t>(i)].entry;
      EXPECT_EQ(kv_split_index_of(part.flags), i);
      EXPECT_EQ(num_kv_splits_of(part.flags), splits);
      EXPECT_EQ(parts[static_cast<size_t>(i)].first_partial, first);
      EXPECT_EQ(part.kv_row, next);
      EXPECT_EQ((part.kv_row - tile.kv_row) % kKeyTileTokens, 0);
      EXPECT_GE(visible_keys(part), (kMinSplitKeyTiles - 1) * kKeyTileTokens + 1);
      if (tile.causal_offset != AttentionEntry::kNotCausal) {
        EXPECT_EQ(part.causal_offset + part.kv_row, tile.causal_offset + tile.kv_row);
      }
      next += part.kv_len;
      EXPECT_FALSE(partial_taken[static_cast<size_t>(first + i)]);
      partial_taken[static_cast<size_t>(first + i)] = true;
    }
    EXPECT_EQ(next, tile.kv_row + tile.kv_len);
  }
}

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
    expect_every_key_once(args_of(spans, heads));
    with_splits += schedule_call(args_of(spans, heads), kMostSplits).kv_splits > 0;
  }
  EXPECT_GT(with_splits, 100);
}

/// Keys are not split if that alone would keep a call from being captured.
TEST(Sm90KvSplits, SchedulesOfCallsStaySmall) {
  std::vector<Request> requests(100, {1, 1000});
  requests.push_back({64, 100064});
  const auto spans = spans_of(requests, true);
  const Schedule whole = schedule_call(args_of(spans, 1), 0);
  ASSERT_LE(call_metadata_bytes(whole), kSmallMetadataBytes);
  ASSERT_GT(make_schedule(whole.entries, {.num_heads = 1}, kMostSplits).kv_splits, 0);
  EXPECT_EQ(schedule_call(args_of(spans, 1), kMostSplits).kv_splits, 0);

  requests.insert(requests.begin(), 20, {1, 1000});
  const auto large = spans_of(requests, true);
  ASSERT_GT(call_metadata_bytes(schedule_call(args_of(large, 1), 0)), kSmallMetadataBytes);
  EXPECT_GT(schedule_call(args_of(large, 1), kMostSplits).kv_splits, 0);
}

TEST(Sm90KvSplits, RoomForNoneWhereNoneAreMade) {
  const auto spans = spans_of({{8192, 8192}}, true);
  EXPECT_EQ(schedule_call(args_of(spans, 16), kMostSplits).kv_splits, 0);
}

/// Items that are no multiple of the clusters: the keys of the last ones are split, for the last heads alone.
TEST(Sm90KvSplits, TheLastWaveIsSplit) {
  struct Case {
    Request request;
    bool causal;
    int64_t heads, kv_splits;
  };
  for (const Case& c : std::vector<Case>{{{8192, 32768}, false, 128, 32},
                                         {{8192, 32768}, false, 16, 104},
                                         {{8192, 49152}, true, 16, 104}}) {
    const auto spans = spans_of({c.request}, c.causal);
    const AttentionArgs args = args_of(spans, c.heads);
    expect_every_key_once(args);
    const Schedule schedule = schedule_call(args, kMostSplits);
    EXPECT_EQ(schedule.kv_splits, c.kv_splits) << c.heads;
    EXPECT_LE(call_metadata_bytes(schedule), kSmallMetadataBytes);
    EXPECT_FALSE(is_split(schedule.entries[static_cast<size_t>(schedule.sections[0].entry_begin)]));
    EXPECT_EQ(schedule_call(args, 0).sections[1].entry_count, 0);
  }
}

/// After many items of different costs no wave can be told from the next.
TEST(Sm90KvSplits, TheEndOfManyUnequalItemsIsSplit) {
  const auto spans = spans_of({{29'952, 130'000}}, true);
  const AttentionArgs args = args_of(spans, 16);
  expect_every_key_once(args);
  const Schedule schedule = schedule_call(args, kMostSplits);
  EXPECT_GT(schedule.kv_splits, 66);
  EXPECT_LT(schedule.sections[0].items_per_entry, 16);
}

TEST(Sm90KvSplits, WholeWavesAreNot) {
  const auto spans = spans_of({{8448, 32768}}, false);  // 33 tiles
  EXPECT_EQ(schedule_call(args_of(spans, 16), kMostSplits).kv_splits, 0);
}

}  // namespace
}  // namespace mlaprefill::sm90
