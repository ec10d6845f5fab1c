#include "backend/sm90/schedule.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "backend/sm90/last_wave.h"
#include "backend/sm90/launch_time.h"
#include "core/checked.h"

namespace mlaprefill::sm90 {
namespace {

/// Keys and values of the heads in flight together should stay in L2, which other data shares.
constexpr int64_t kResidentBytes = int64_t{24} << 20;
/// With fewer items it matters more that the cheapest come last.
constexpr int64_t kItemsWorthGrouping = 1024;
/// What an item costs besides its keys, in keys.
constexpr int64_t kItemCostKeys = 256;

/// The distinct runs of key rows that entries attend to.
struct KeyRuns {
  int64_t count = 0;
  int64_t keys = 0;
};

KeyRuns distinct_runs(std::span<const AttentionEntry> entries) {
  std::vector<std::pair<int32_t, int32_t>> runs;
  for (const AttentionEntry& entry : entries) runs.emplace_back(entry.kv_row, entry.kv_len);
  std::sort(runs.begin(), runs.end());
  runs.erase(std::unique(runs.begin(), runs.end()), runs.end());
  KeyRuns distinct{.count = static_cast<int64_t>(runs.size())};
  for (const auto& run : runs) distinct.keys += run.second;
  return distinct;
}

/// Brings entries that share keys together, in the order of their costliest ones.
void group_by_keys(std::span<AttentionEntry> entries) {
  std::map<std::pair<int32_t, int32_t>, size_t> order;
  for (const AttentionEntry& entry : entries) order.try_emplace({entry.kv_row, entry.kv_len}, order.size());
  std::stable_sort(entries.begin(), entries.end(), [&](const AttentionEntry& a, const AttentionEntry& b) {
    return order.at({a.kv_row, a.kv_len}) < order.at({b.kv_row, b.kv_len});
  });
}

/// Items of an entry that give all clusters work, together with those of the other entries, for as long as
/// the costliest item takes: with fewer in a group, some clusters would idle over the last one.
int64_t balanced_group(std::span<const AttentionEntry> entries) {
  int64_t total = 0;
  int64_t most = 0;
  for (const AttentionEntry& entry : entries) {
    const int64_t cost = visible_keys(entry) + kItemCostKeys;
    total += cost;
    most = std::max(most, cost);
  }
  return ceil_div(kClusters * most, total);
}

/// Whether no entry sees more than twice the keys of another: then their order does not matter for balance.
bool see_similar_keys(std::span<const AttentionEntry> entries) {
  const auto [least, most] = std::minmax_element(
      entries.begin(), entries.end(),
      [](const AttentionEntry& a, const AttentionEntry& b) { return visible_keys(a) < visible_keys(b); });
  return 2 * visible_keys(*least) >= visible_keys(*most);
}

/// Items of one entry, of `items`, that run before the next entry's: as many as L2 can hold the keys of,
/// `resident`, but at least `balanced`. Within those limits groups are as full as can be: a last group of few
/// would keep few clusters busy with its costliest entries.
int64_t group_size(int64_t items, int64_t resident, int64_t balanced) {
  if (items <= std::max(resident, balanced)) return items;
  const bool fits = resident >= balanced;
  const int64_t smallest = std::max(balanced, (resident + 1) / 2);
  const int64_t largest = fits ? resident : std::min(items, 2 * balanced - 1);
  const auto missing = [items](int64_t size) { return ceil_div(items, size) * size - items; };
  int64_t best = smallest;
  for (int64_t size = smallest + 1; size <= largest; ++size) {
    if (missing(size) < missing(best) || (fits && missing(size) == missing(best))) best = size;
  }
  return best;
}

/// Makes the section of entries of one row split, costliest first. Where there is much to do, entries that
/// share keys run side by side if L2 cannot hold even one head's, and no group is larger than L2 holds unless
/// what they see differs. Where keys are split there is little to do, and the order of cost alone counts.
/// Keys that L2 cannot hold and nobody shares are read by all heads at once, whose rows lie side by side in
/// memory.
AttentionSection make_section(std::span<AttentionEntry> entries, const HeadShape& shape) {
  const int32_t heads = heads_per_item(row_split_of(entries[0].flags));
  AttentionSection section;
  section.entry_count = static_cast<int32_t>(entries.size());
  section.items_per_entry = items_per_entry(entries[0], shape.num_heads);
  section.group_items = section.items_per_entry;
  if (std::any_of(entries.begin(), entries.end(), is_split)) return section;

  const KeyRuns runs = distinct_runs(entries);
  const int64_t item_bytes = std::max<int64_t>(1, runs.keys * shape.kv_row_bytes * heads);
  const int64_t resident = kResidentBytes / item_bytes;
  const bool shared = runs.count < section.entry_count;
  if (!shared && resident == 0) return section;
  const bool many = int64_t{section.entry_count} * section.items_per_entry >= kItemsWorthGrouping;
  const bool stay_resident = many && shared && see_similar_keys(entries);
  if (many && resident == 0) group_by_keys(entries);
  section.group_items = static_cast<int32_t>(
      group_size(section.items_per_entry, resident, stay_resident ? 1 : balanced_group(entries)));
  return section;
}

/// Orders entries, costliest first, by row split, each in the order of its costliest entry, and makes a
/// section of each. Returns how many.
int make_sections(Schedule& schedule, const HeadShape& shape) {
  std::vector<RowSplit> order;
  for (const AttentionEntry& entry : schedule.entries) {
    const RowSplit split = row_split_of(entry.flags);
    if (std::find(order.begin(), order.end(), split) == order.end()) order.push_back(split);
  }
  const auto rank = [&order](const AttentionEntry& entry) {
    return std::find(order.begin(), order.end(), row_split_of(entry.flags)) - order.begin();
  };
  std::stable_sort(schedule.entries.begin(), schedule.entries.end(),
                   [&rank](const AttentionEntry& a, const AttentionEntry& b) { return rank(a) < rank(b); });
  int count = 0;
  for (auto begin = schedule.entries.begin(); begin != schedule.entries.end(); ++count) {
    const auto end = std::find_if(begin, schedule.entries.end(),
                                  [&](const AttentionEntry& entry) { return rank(entry) != count; });
    AttentionSection& section = schedule.sections[static_cast<size_t>(count)];
    section = make_section({begin, end}, shape);
    section.entry_begin = static_cast<int32_t>(begin - schedule.entries.begin());
    begin = end;
  }
  return count;
}

/// Splits the keys of a section's last entries for its last group of heads.
void split_last_wave(Schedule& schedule, const LastWave& wave) {
  const AttentionSection all = schedule.sections[0];
  const int32_t heads = last_group_items(all);
  const int32_t first_head = all.items_per_entry - heads;
  const auto whole = static_cast<int32_t>(all.entry_count - wave.entries);
  std::vector<AttentionEntry> splits;
  for (int32_t e = whole; e < all.entry_count; ++e) {
    append_splits(schedule.entries[static_cast<size_t>(e)], wave.cut,
                  schedule.kv_splits - first_head * wave.cut.splits, splits);
    schedule.kv_splits += wave.cut.splits * heads;
  }
  std::stable_sort(splits.begin(), splits.end(), sees_more);

  AttentionSection last = all;
  last.items_per_entry = last.group_items = heads;
  last.first_head_item = first_head;
  size_t count = 0;
  if (first_head > 0) {
    schedule.sections[count] = all;
    schedule.sections[count++].items_per_entry = first_head;
  } else {
    schedule.entries.resize(static_cast<size_t>(whole));
  }
  last.entry_count = whole;
  if (whole > 0) schedule.sections[count++] = last;
  last.entry_begin = static_cast<int32_t>(schedule.entries.size());
  last.entry_count = static_cast<int32_t>(splits.size());
  schedule.sections[count] = last;
  schedule.entries.insert(schedule.entries.end(), splits.begin(), splits.end());
}

}  // namespace

Schedule make_schedule(std::vector<AttentionEntry> entries, const HeadShape& shape, int64_t max_kv_splits) {
  max_kv_splits = std::min<int64_t>(max_kv_splits, kMaxSplitsPerLaunch);
  Schedule schedule;
  schedule.kv_splits = split_keys(entries, shape.num_heads, max_kv_splits);
  schedule.entries = std::move(entries);
  const int sections = make_sections(schedule, shape);
  if (sections == 1 && schedule.kv_splits == 0) {
    const LastWave wave = choose_last_wave(schedule.entries, schedule.sections[0], max_kv_splits);
    if (wave.entries > 0) split_last_wave(schedule, wave);
  }
  uint32_t items = 0;
  for (AttentionSection& section : schedule.sections) {
    items += static_cast<uint32_t>(section.entry_count) * static_cast<uint32_t>(section.items_per_entry);
    section.item_end = items;
  }
  return schedule;
}

}  // namespace mlaprefill::sm90
