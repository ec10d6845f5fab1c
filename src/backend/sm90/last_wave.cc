#include "backend/sm90/last_wave.h"

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "backend/sm90/launch_time.h"
#include "core/checked.h"
#include "plan/kv_splits.h"

namespace mlaprefill::sm90 {
namespace {

/// Items of different times that are placed one by one. After more of them clusters are taken to be free one
/// after the other, within the time of an item: on average, for a schedule of that many may end better or
/// worse.
constexpr int64_t kMostPlacedItems = 1024;

/// Of a split here: the partials of shorter ones cost about as much as they save.
constexpr int64_t kFewestTiles = 16;
static_assert(kFewestTiles >= kMinSplitKeyTiles);
/// A launch must end earlier by one part in this many.
constexpr int64_t kLeastGain = 250;

int64_t time_of(const AttentionEntry& entry) { return item_time(key_tiles_of(entry)); }

/// Gives clusters items to do and returns when the last of those ends.
int64_t occupy(Clusters& clusters, int64_t time, int64_t items) {
  int64_t end = 0;
  for (int64_t i = 0; i < items; ++i) end = clusters.occupy(time);
  return end;
}

int64_t total_time(std::span<const AttentionEntry> entries) {
  int64_t total = 0;
  for (const AttentionEntry& entry : entries) total += time_of(entry);
  return total;
}

/// Places the first `items` items of a section.
void place(std::span<const AttentionEntry> entries, const AttentionSection& section, int64_t items,
           Clusters& clusters) {
  for (int64_t first = 0; first < section.items_per_entry; first += section.group_items) {
    const int64_t group = std::min<int64_t>(section.group_items, section.items_per_entry - first);
    for (const AttentionEntry& entry : entries) {
      const int64_t now = std::min(group, items);
      occupy(clusters, time_of(entry), now);
      items -= now;
    }
  }
}

/// Ways to cut that are worth a look: into equal splits for few entries, or in two, the second to share a
/// cluster with others, for many.
constexpr std::array<KvCut, 12> kCuts{
    {{2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 1}, {2, 2}, {2, 3}, {2, 4}, {2, 5}, {2, 6}}};

/// When a launch ends if the last `wave.entries` entries of its `tail` are split, or 0 if they are too short
/// for that. Clusters are free when what comes before the tail has ended.
int64_t end_of(std::span<const AttentionEntry> tail, int64_t heads, const LastWave& wave, Clusters clusters) {
  const auto split = static_cast<size_t>(wave.entries);
  for (const AttentionEntry& entry : tail.first(tail.size() - split)) occupy(clusters, time_of(entry), heads);
  std::vector<int64_t> times;
  for (const AttentionEntry& entry : tail.last(split)) {
    const int64_t tiles = key_tiles_of(entry);
    for (int64_t i = 0; i < wave.cut.splits; ++i) {
      const int64_t length = wave.cut.first_tile(tiles, i + 1) - wave.cut.first_tile(tiles, i);
      if (length < kFewestTiles) return 0;
      times.push_back(item_time(length) + kStoreTime);
    }
  }
  std::sort(times.begin(), times.end(), std::greater<>());
  int64_t end = 0;
  for (const int64_t time : times)
    end = std::max(end, occupy(clusters, time, heads) + wave.cut.splits * kMergeTime);
  return std::max(end, clusters.all_free());
}

}  // namespace

LastWave choose_last_wave(std::span<const AttentionEntry> entries, const AttentionSection& section,
                          int64_t max_splits) {
  const int64_t heads = last_group_items(section);
  const int64_t items = int64_t{section.entry_count} * section.items_per_entry;
  const int64_t over = items % kClusters;
  if (max_splits == 0 || items < kClusters || over == 0) return {};
  if (key_tiles_of(entries.back()) < 2 * kFewestTiles) return {};
  const bool equal = std::all_of(entries.begin(), entries.end(), [&](const AttentionEntry& entry) {
    return key_tiles_of(entry) == key_tiles_of(entries[0]);
  });
  const bool placed = equal || items <= kMostPlacedItems;

  std::array<int64_t, 2> counts{};
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t split = placed ? over + (i == 0 ? 0 : heads) : kClusters / (i == 0 ? 2 : 1);
    counts[i] = std::min<int64_t>(ceil_div(split, heads), section.entry_count);
  }
  const auto tail = entries.last(static_cast<size_t>(counts[1]));
  const int64_t items_before = items - counts[1] * heads;
  const int64_t total = total_time(entries) * section.items_per_entry;
  const int64_t total_before = total - total_time(tail) * heads;
  int64_t start = 0;  // of the times that follow
  Clusters clusters;
  if (equal) {
    start = items_before / kClusters * time_of(entries[0]);
    occupy(clusters, time_of(entries[0]), items_before % kClusters);
  } else if (placed) {
    place(entries, section, items_before, clusters);
  } else {
    start = total_before / kClusters - time_of(tail[0]) / 2;
    clusters = Clusters(time_of(tail[0]));
  }

  const int64_t whole_end = end_of(tail, heads, {}, clusters);
  int64_t best_end = whole_end - (start + whole_end) / kLeastGain;
  if (total / kClusters - start >= best_end) return {};
  LastWave best;
  for (const int64_t count : counts) {
    for (const KvCut& cut : kCuts) {
      if (count * heads * cut.splits > max_splits) continue;
      const int64_t end = end_of(tail, heads, {count, cut}, clusters);
      if (end == 0 || end >= best_end) continue;
      best = {count, cut};
      best_end = end;
    }
  }
  return best;
}

}  // namespace mlaprefill::sm90
