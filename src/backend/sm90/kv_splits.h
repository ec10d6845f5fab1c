// Which entries of a launch have their keys split between clusters, and where.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/sm90/attention_params.h"

namespace mlaprefill::sm90 {

/// Clusters that an H100 SXM or H200 runs at once; schedules are made for them.
inline constexpr int64_t kClusters = 66;

inline bool is_split(const AttentionEntry& entry) { return num_kv_splits_of(entry.flags) > 0; }

/// Items of one entry: each takes one head or several.
int32_t items_per_entry(const AttentionEntry& entry, int32_t num_heads);

/// Keys the entry's last query sees.
int64_t visible_keys(const AttentionEntry& entry);

/// The order of cost, costliest first.
inline bool sees_more(const AttentionEntry& a, const AttentionEntry& b) {
  return visible_keys(a) > visible_keys(b);
}

/// Replaces entries by their splits where a launch of `num_heads` heads ends clearly earlier for it: where
/// there are fewer items than clusters, or some of them far longer than the rest. At most `max_splits`
/// splits, counted for each head item; 0: none. Entries come, whole, and go costliest first. The same entries
/// give the same splits.
void split_keys(std::vector<AttentionEntry>& entries, int32_t num_heads, int64_t max_splits);

}  // namespace mlaprefill::sm90
