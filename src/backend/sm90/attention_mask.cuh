// Which keys a row sees: always a prefix of the entry's keys.
#pragma once

#include <cmath>

#include "backend/sm90/attention_traits.cuh"

namespace mlaprefill::sm90 {

/// First of this thread's two rows of its warpgroup's 64; the second is 8 further.
__device__ __forceinline__ int32_t thread_row() {
  return static_cast<int32_t>(16 * ((threadIdx.x / 32) % 4) + (threadIdx.x % 32) / 4);
}

/// Keys that local query row `row` of the item sees; <= 0: none.
__device__ __forceinline__ int32_t visible_keys(const WorkItem& item, int32_t row) {
  return min(item.kv_len, item.causal_offset + row + 1);
}

/// Key tiles of one warpgroup's 64 rows.
struct TileRange {
  int32_t unmasked;  ///< leading tiles that every row sees whole
  int32_t needed;    ///< tiles any row sees, at least one when the item has any
};

template <class Traits>
__device__ __forceinline__ TileRange tile_range(const WorkItem& item, int32_t first_row) {
  const int32_t first_sees = max(0, visible_keys(item, first_row));
  const int32_t last_row = min(first_row + kRowsPerWarpgroup, item.q_rows) - 1;
  const int32_t last_sees = last_row < first_row ? 0 : max(0, visible_keys(item, last_row));
  const int32_t needed = (last_sees + Traits::kKeyTile - 1) / Traits::kKeyTile;
  return {first_sees / Traits::kKeyTile, min(max(needed, 1), item.tiles)};
}

/// Bit j says whether a thread sees its j-th column of a row, 8 * (j / 2) + j % 2 from its first one, when
/// the row sees `limit` columns from there.
__device__ __forceinline__ uint32_t visible_columns(int32_t limit) {
  constexpr int32_t kColumns = 128;  // of a thread's 32
  const int32_t columns = min(max(limit, 0), kColumns);
  const int32_t count = 2 * (columns / 8) + min(columns % 8, 2);
  return count < 32 ? (1u << count) - 1 : ~0u;
}

/// Hides the scores of columns at or past each row's limit, by selection. `limit[h]` counts from this
/// thread's first column of the tile, for its row h.
template <int kScores>
__device__ __forceinline__ void mask_scores(float (&scores)[kScores], int32_t limit_low, int32_t limit_high) {
  const uint32_t visible[2] = {visible_columns(limit_low), visible_columns(limit_high)};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int j = 0; j < kScores / 2; ++j) {
      const int i = 4 * (j / 2) + 2 * h + j % 2;
      if ((visible[h] >> j & 1) == 0) scores[i] = -INFINITY;
    }
  }
}

}  // namespace mlaprefill::sm90
