// The end of a launch of many items: where their number is no multiple of the clusters', the keys of the last
// ones are split so that all clusters end together.
#pragma once

#include <cstdint>
#include <span>

#include "backend/sm90/kv_splits.h"

namespace mlaprefill::sm90 {

/// The last entries of a section have their keys split, for the heads of its last group alone.
struct LastWave {
  int64_t entries = 0;  ///< 0: none
  KvCut cut;
};

/// Items of one entry in the last group of heads.
inline int32_t last_group_items(const AttentionSection& section) {
  const int32_t rest = section.items_per_entry % section.group_items;
  return rest > 0 ? rest : section.group_items;
}

/// What ends a launch of one section of whole entries clearly earlier, with at most `max_splits` splits,
/// counted for each head item.
LastWave choose_last_wave(std::span<const AttentionEntry> entries, const AttentionSection& section,
                          int64_t max_splits);

}  // namespace mlaprefill::sm90
