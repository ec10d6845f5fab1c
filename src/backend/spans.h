// Checks of attention spans.
#pragma once

#include <cstdint>
#include <span>

#include "mlaprefill/backend.h"

namespace mlaprefill {

/// Spans lie inside the tensors and share no query row.
Status check_spans(std::span<const AttentionSpan> spans, int64_t q_rows, int64_t k_rows);

}  // namespace mlaprefill
