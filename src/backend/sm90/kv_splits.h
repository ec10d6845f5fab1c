// Which entries of a launch have their keys split between clusters, and where.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/sm90/attention_params.h"

namespace mlaprefill::sm90 {

inline bool is_split(const AttentionEntry& entry) { return num_kv_splits_of(entry.flags) > 0; }

/// Items of one entry: each takes one head or several.
int32_t items_per_entry(const AttentionEntry& entry, int32_t num_heads);

/// Keys the entry's last query sees.
int64_t visible_keys(const AttentionEntry& entry);

/// Key tiles its last query sees.
int64_t key_tiles_of(const AttentionEntry& entry);

/// A way to cut the keys of an entry at key tiles: the first split has `first_weight` times as many tiles as
/// each of the others.
struct KvCut {
  int64_t splits = 1;
  int64_t first_weight = 1;

  int64_t first_tile(int64_t tiles, int64_t split) const {
    return split == 0 ? 0 : tiles * (first_weight + split - 1) / (first_weight + splits - 1);
  }
};

/// Appends the splits of an entry. `first_partial` is that of head item 0, modulo kMaxSplitsPerLaunch.
void append_splits(const AttentionEntry& entry, const KvCut& cut, int64_t first_partial,
                   std::vector<AttentionEntry>& out);

/// The order of cost, costliest first.
inline bool sees_more(const AttentionEntry& a, const AttentionEntry& b) {
  return visible_keys(a) > visible_keys(b);
}

/// Replaces entries by their splits where a launch of `num_heads` heads ends clearly earlier for it: where
/// there are fewer items than clusters, or some of them far longer than the rest. At most `max_splits`
/// splits, counted for each head item; 0: none. Entries come, whole, and go costliest first. The same entries
/// give the same splits. Returns how many there are.
int64_t split_keys(std::vector<AttentionEntry>& entries, int32_t num_heads, int64_t max_splits);

}  // namespace mlaprefill::sm90
