// The order of a launch's work: which entries there are, and how their heads follow one another.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/sm90/attention_params.h"

namespace mlaprefill::sm90 {

inline constexpr int kSections = 3;

struct HeadShape {
  int32_t num_heads = 0;
  int64_t kv_row_bytes = 0;  ///< key and value of one token for one head
};

struct Schedule {
  std::vector<AttentionEntry> entries;
  /// One for each RowSplit that has entries, or the parts of the only one; then an empty one. Entries are
  /// counted from the schedule's first.
  std::array<AttentionSection, kSections + 1> sections{};
  int64_t kv_splits = 0;  ///< of all head items together
};

/// The schedule of whole entries, costliest first, with at most `max_kv_splits` splits of keys.
Schedule make_schedule(std::vector<AttentionEntry> entries, const HeadShape& shape, int64_t max_kv_splits);

}  // namespace mlaprefill::sm90
