#include "backend/sm90/kv_splits.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "backend/sm90/launch_time.h"
#include "core/checked.h"
#include "plan/kv_splits.h"

namespace mlaprefill::sm90 {
namespace {

/// Items that are placed on clusters one by one; cheaper ones, if there are more, fill what is left.
constexpr int64_t kPlacedItems = 4 * kClusters;

/// An entry's part in a launch.
struct Work {
  int64_t tiles = 0;
  int64_t items = 0;
};

/// A way to split: the first `whole` entries not at all, the others into splits of at most `tiles` tiles,
/// none of them of fewer than kMinSplitKeyTiles.
struct Cut {
  size_t whole = 0;
  int64_t tiles = 0;

  int64_t splits_of(size_t entry, const Work& work) const {
    if (entry < whole) return 1;
    return std::max<int64_t>(1, std::min(ceil_div(work.tiles, tiles), work.tiles / kMinSplitKeyTiles));
  }
};

/// Items of equal time.
struct Batch {
  int64_t time = 0;
  int64_t items = 0;
  int64_t merge_time = 0;
};

int64_t splits_in(std::span<const Work> work, const Cut& cut) {
  int64_t sum = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    const int64_t splits = cut.splits_of(i, work[i]);
    if (splits > 1) sum += splits * work[i].items;
  }
  return sum;
}

/// Time after which the last of batches ends when clusters take their items one after the other.
int64_t time_to_run(std::span<const Batch> batches) {
  Clusters clusters;
  int64_t end = 0;
  for (const Batch& batch : batches) {
    for (int64_t i = 0; i < batch.items; ++i)
      end = std::max(end, clusters.occupy(batch.time) + batch.merge_time);
  }
  return end;
}

/// Estimated time of a launch, or `limit` if it would take at least that long.
int64_t time_of(std::span<const Work> work, const Cut& cut, int64_t limit) {
  std::vector<Batch> placed;
  int64_t total = 0;
  int64_t items = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    const int64_t splits = cut.splits_of(i, work[i]);
    Batch batch{.time = item_time(ceil_div(work[i].tiles, splits)), .items = splits * work[i].items};
    if (splits > 1) {
      batch.time += kStoreTime;
      batch.merge_time = splits * kMergeTime;
    }
    total += batch.time * batch.items;
    if (items < kPlacedItems) placed.push_back(batch);
    items += batch.items;
  }
  const int64_t shared_time = ceil_div(total, kClusters);
  if (shared_time >= limit) return limit;
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Batch& a, const Batch& b) { return a.time > b.time; });
  return std::min(limit, std::max(time_to_run(placed), shared_time));
}

/// Cuts worth a look: every number of splits of the longest entry that stays within `max_splits`, for all
/// entries and for those beyond the first one or two items of each cluster.
std::vector<Cut> candidate_cuts(std::span<const Work> work, int64_t max_splits) {
  std::vector<Cut> cuts;
  Cut cut;
  int64_t whole_items = 0;
  for (int64_t items_before = 0; items_before <= 2 * kClusters; items_before += kClusters) {
    const size_t whole_before = cut.whole;
    while (cut.whole < work.size() && whole_items + work[cut.whole].items <= items_before) {
      whole_items += work[cut.whole++].items;
    }
    if (items_before > 0 && cut.whole == whole_before) continue;
    if (cut.whole == work.size()) break;
    const int64_t longest = work[cut.whole].tiles;
    for (int64_t splits = 2; splits <= kMaxSplitsPerEntry && longest >= splits * kMinSplitKeyTiles;
         ++splits) {
      cut.tiles = ceil_div(longest, splits);
      if (splits_in(work, cut) > max_splits) break;
      cuts.push_back(cut);
    }
  }
  return cuts;
}

/// The best cut found; whole entries unless another takes a tenth less time.
Cut choose_cut(std::span<const Work> work, int64_t max_splits) {
  Cut best{.whole = work.size()};
  if (max_splits == 0 || work.empty() || !may_split_keys(work[0].tiles)) return best;
  int64_t best_time = time_of(work, best, std::numeric_limits<int64_t>::max()) * 9 / 10;
  int64_t total = 0;
  for (const Work& one : work) total += one.items * item_time(one.tiles);
  const int64_t good_time = total / kClusters * 21 / 20;
  if (best_time <= good_time) return best;
  for (const Cut& cut : candidate_cuts(work, max_splits)) {
    if (cut.whole > 0 && item_time(work[0].tiles) >= best_time) break;  // as long as its whole ones
    const int64_t time = time_of(work, cut, best_time);
    if (time == best_time) continue;
    best = cut;
    best_time = time;
    if (best_time <= good_time) break;
  }
  return best;
}

}  // namespace

int32_t items_per_entry(const AttentionEntry& entry, int32_t num_heads) {
  return static_cast<int32_t>(ceil_div(num_heads, heads_per_item(row_split_of(entry.flags))));
}

int64_t visible_keys(const AttentionEntry& entry) {
  return std::clamp<int64_t>(int64_t{entry.causal_offset} + entry.q_rows, 0, entry.kv_len);
}

int64_t key_tiles_of(const AttentionEntry& entry) { return ceil_div(visible_keys(entry), kKeyTileTokens); }

void append_splits(const AttentionEntry& entry, const KvCut& cut, int64_t first_partial,
                   std::vector<AttentionEntry>& out) {
  const int64_t tiles = key_tiles_of(entry);
  for (int64_t split = 0; split < cut.splits; ++split) {
    const bool last = split == cut.splits - 1;
    const auto begin = static_cast<int32_t>(cut.first_tile(tiles, split) * kKeyTileTokens);
    const auto end =
        last ? entry.kv_len : static_cast<int32_t>(cut.first_tile(tiles, split + 1) * kKeyTileTokens);
    AttentionEntry part = entry;
    part.kv_row += begin;
    part.kv_len = end - begin;
    if (entry.causal_offset != AttentionEntry::kNotCausal) part.causal_offset -= begin;
    if (split > 0) part.flags &= ~AttentionEntry::kResume;
    part.flags |= static_cast<int32_t>(split) << AttentionEntry::kSplitIndexShift |
                  static_cast<int32_t>(cut.splits) << AttentionEntry::kNumSplitsShift |
                  static_cast<int32_t>(first_partial & (kMaxSplitsPerLaunch - 1))
                      << AttentionEntry::kFirstPartialShift;
    out.push_back(part);
  }
}

int64_t split_keys(std::vector<AttentionEntry>& entries, int32_t num_heads, int64_t max_splits) {
  std::vector<Work> work;
  for (const AttentionEntry& entry : entries) {
    work.push_back({key_tiles_of(entry), items_per_entry(entry, num_heads)});
  }
  const Cut cut = choose_cut(work, max_splits);
  if (cut.whole == work.size()) return 0;
  std::vector<AttentionEntry> split;
  int64_t partials = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t splits = cut.splits_of(i, work[i]);
    if (splits == 1) {
      split.push_back(entries[i]);
      continue;
    }
    append_splits(entries[i], {.splits = splits}, partials, split);
    partials += splits * work[i].items;
  }
  std::stable_sort(split.begin(), split.end(), sees_more);
  entries = std::move(split);
  return partials;
}

}  // namespace mlaprefill::sm90
