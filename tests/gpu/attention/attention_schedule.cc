#include "gpu/attention/attention_schedule.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace mlaprefill::sm90 {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 30;

RowSplit split_for(int64_t rows) {
  if (rows > 2 * kRowsPerWarpgroup) return RowSplit::kFourBlocksOneHead;
  return rows > kRowsPerWarpgroup ? RowSplit::kTwoBlocksTwoHeads : RowSplit::kOneBlockFourHeads;
}

RowSplit split_of(const AttentionEntry& entry) {
  return static_cast<RowSplit>(entry.flags & AttentionEntry::kSplitMask);
}

int64_t key_tiles(const AttentionEntry& entry, int32_t key_tile) {
  const int64_t visible = std::clamp<int64_t>(int64_t{entry.causal_offset} + entry.q_rows, 0, entry.kv_len);
  return (visible + key_tile - 1) / key_tile;
}

void append_entries(const AttentionSpan& span, std::vector<AttentionEntry>& entries) {
  for (int64_t begin = 0; begin < span.q_len; begin += kMaxEntryRows) {
    const int64_t rows = std::min<int64_t>(span.q_len - begin, kMaxEntryRows);
    const int64_t offset = span.causal_offset > kMaxRows ? kMaxRows : span.causal_offset + begin;
    AttentionEntry entry;
    entry.q_row = static_cast<int32_t>(span.q_row + begin);
    entry.q_rows = static_cast<int32_t>(rows);
    entry.kv_row = static_cast<int32_t>(span.k_row);
    entry.kv_len = static_cast<int32_t>(span.k_len);
    entry.causal_offset = static_cast<int32_t>(std::clamp(offset, -kMaxRows, kMaxRows));
    entry.flags = static_cast<int32_t>(split_for(rows)) | (span.resume ? AttentionEntry::kResume : 0) |
                  (span.store_state ? AttentionEntry::kStoreState : 0);
    entries.push_back(entry);
  }
}

/// Head items whose K and V fit the share of L2 set aside for them while all entries run.
int32_t group_items(std::span<const AttentionEntry> entries, int32_t items_per_entry, int32_t heads) {
  constexpr int64_t kCacheBytes = 24 << 20;
  constexpr int64_t kBytesPerKey = 512;  // K and V of one head
  int64_t keys = 0;
  std::vector<int32_t> seen;
  for (const AttentionEntry& entry : entries) seen.push_back(entry.kv_row);
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  std::vector<int32_t> longest(seen.size());
  for (const AttentionEntry& entry : entries) {
    const auto at =
        static_cast<size_t>(std::lower_bound(seen.begin(), seen.end(), entry.kv_row) - seen.begin());
    longest[at] = std::max(longest[at], entry.kv_len);
  }
  for (int32_t length : longest) keys += length;
  const int64_t fitting = kCacheBytes / std::max<int64_t>(1, keys * kBytesPerKey * heads);
  return static_cast<int32_t>(std::clamp<int64_t>(fitting, 1, items_per_entry));
}

}  // namespace

AttentionSchedule make_attention_schedule(std::span<const AttentionSpan> spans, int32_t num_heads,
                                          int32_t key_tile) {
  AttentionSchedule schedule;
  for (const AttentionSpan& span : spans) {
    if (span.q_row + span.q_len > kMaxRows || span.k_row + span.k_len > kMaxRows) return {};
    append_entries(span, schedule.entries);
  }
  std::stable_sort(schedule.entries.begin(), schedule.entries.end(),
                   [&](const AttentionEntry& a, const AttentionEntry& b) {
                     return key_tiles(a, key_tile) > key_tiles(b, key_tile);
                   });
  // One section a split, the one with the costliest entry first: whenever tiles shared by both CTAs follow
  // tiles that are not, the cluster's rings run dry.
  std::vector<AttentionEntry> sorted;
  int64_t items = 0;
  std::array<bool, 3> done{};
  for (const AttentionEntry& leader : schedule.entries) {
    const RowSplit split = split_of(leader);
    if (std::exchange(done[static_cast<size_t>(split)], true)) continue;
    const size_t begin = sorted.size();
    std::copy_if(schedule.entries.begin(), schedule.entries.end(), std::back_inserter(sorted),
                 [split](const AttentionEntry& entry) { return split_of(entry) == split; });
    AttentionSection section;
    section.entry_begin = static_cast<int32_t>(begin);
    section.entry_count = static_cast<int32_t>(sorted.size() - begin);
    section.items_per_entry = (num_heads + heads_per_item(split) - 1) / heads_per_item(split);
    section.group_items = group_items({sorted.data() + begin, sorted.size() - begin}, section.items_per_entry,
                                      heads_per_item(split));
    items += int64_t{section.items_per_entry} * section.entry_count;
    if (items >= int64_t{1} << 31) return {};
    section.item_end = static_cast<uint32_t>(items);
    schedule.sections.push_back(section);
  }
  schedule.entries = std::move(sorted);
  schedule.items = static_cast<uint32_t>(items);
  schedule.sections.emplace_back();
  return schedule;
}

}  // namespace mlaprefill::sm90
