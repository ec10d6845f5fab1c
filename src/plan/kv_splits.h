// Splitting of keys: where the tiles of a pass would leave part of a device idle, several of its processors
// share the keys of one tile, each leaves a partial result in the workspace and the last one merges them.
#pragma once

#include <cstdint>

#include "mlaprefill/plan.h"

namespace mlaprefill {

/// Splits have at least this many.
inline constexpr int64_t kMinSplitKeyTiles = 4;

/// Whether a backend may split the keys of a tile.
constexpr bool may_split_keys(int64_t key_tiles) { return key_tiles >= 2 * kMinSplitKeyTiles; }

/// Splits, of all tiles together, that one launch may have: enough for a few on every processor.
constexpr int64_t most_kv_splits(const DeviceProperties& device) {
  return int64_t{device.num_processors} * 3 / 2;
}

/// Float32 words of one row of a split's partial result: the output, and maximum and sum four times each.
constexpr int64_t partial_row_words(int64_t v_head_dim) { return v_head_dim + 8; }

}  // namespace mlaprefill
