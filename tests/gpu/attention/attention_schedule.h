// A schedule for the attention kernel alone, straight from spans. The backend makes its own from a plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/sm90/attention_params.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::sm90 {

struct AttentionSchedule {
  std::vector<AttentionEntry> entries;
  std::vector<AttentionSection> sections;  ///< ends with an empty one
  uint32_t items = 0;
};

/// Cuts every span into entries of at most 256 query rows, costliest first. A span's cuts depend on the span
/// alone. Rows and lengths must be below 2^30, and items below 2^31: returns an empty list of sections
/// otherwise.
AttentionSchedule make_attention_schedule(std::span<const AttentionSpan> spans, int32_t num_heads,
                                          int32_t key_tile);

}  // namespace mlaprefill::sm90
