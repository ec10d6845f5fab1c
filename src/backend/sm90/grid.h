// Grids of kernels whose blocks walk over their work in strides.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mlaprefill::sm90 {

/// Blocks for `items`, of which a block takes `items_per_block` at once: no more than eight a processor.
inline unsigned grid_blocks(int64_t items, int64_t items_per_block, int32_t processors) {
  constexpr int64_t kBlocksPerProcessor = 8;
  const int64_t wanted = (items + items_per_block - 1) / items_per_block;
  return static_cast<unsigned>(std::min(wanted, processors * kBlocksPerProcessor));
}

}  // namespace mlaprefill::sm90
