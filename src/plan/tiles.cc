// Query tiles: the device's work items, most expensive first in each pass.
#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "core/checked.h"
#include "core/error.h"
#include "plan/steps.h"

namespace mlaprefill {
namespace {

/// Stable and linear: least significant digit first, over as many digits as the largest cost has.
void sort_by_cost_descending(std::span<Tile> tiles, std::vector<Tile>& scratch) {
  constexpr uint32_t digit_bits = 8;
  constexpr uint32_t digits = 1U << digit_bits;
  uint32_t largest = 0;
  for (const Tile& tile : tiles) largest = std::max(largest, static_cast<uint32_t>(tile.key_tiles));
  scratch.resize(tiles.size());
  for (uint32_t shift = 0; shift < 32 && (largest >> shift) > 0; shift += digit_bits) {
    const auto bucket = [shift](const Tile& tile) {
      return digits - 1 - ((static_cast<uint32_t>(tile.key_tiles) >> shift) & (digits - 1));
    };
    std::array<size_t, digits + 1> begin{};
    for (const Tile& tile : tiles) ++begin[bucket(tile) + 1];
    for (size_t d = 0; d < digits; ++d) begin[d + 1] += begin[d];
    for (const Tile& tile : tiles) scratch[begin[bucket(tile)]++] = tile;
    std::copy(scratch.begin(), scratch.end(), tiles.begin());
  }
}

}  // namespace

Status add_tiles(Plan& plan) {
  const int64_t tile_rows = plan.device.query_tile_tokens;
  const int64_t key_tile = plan.device.key_tile_tokens;
  int64_t most_tiles = 0;
  for (const Span& span : plan.spans) {
    most_tiles += ceil_div(plan.query_lens[static_cast<size_t>(span.request)], tile_rows);
    if (most_tiles > kMaxTiles) {
      return error(StatusCode::kLimitExceeded, "query_tile_tokens: must give at most {} tiles, got {}",
                   kMaxTiles, tile_rows);
    }
  }
  plan.tiles.reserve(static_cast<size_t>(most_tiles));

  std::vector<Tile> scratch;
  for (Pass& pass : plan.passes) {
    pass.tile_begin = static_cast<int64_t>(plan.tiles.size());
    for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
      const Span& span = plan.spans[static_cast<size_t>(s)];
      const int64_t context = plan.context_lens[static_cast<size_t>(span.request)];
      const int64_t query_len = plan.query_lens[static_cast<size_t>(span.request)];
      for (int64_t begin = 0; begin < query_len; begin += tile_rows) {
        const int64_t rows = std::min(tile_rows, query_len - begin);
        const int64_t visible_end = std::min(span.key_end, context + begin + rows);
        const int64_t visible = std::max<int64_t>(visible_end - span.key_begin, 0);
        if (visible == 0 && !span.last) continue;
        plan.tiles.push_back(
            {s, begin, static_cast<int32_t>(rows), static_cast<int32_t>(ceil_div(visible, key_tile))});
      }
    }
    pass.tile_end = static_cast<int64_t>(plan.tiles.size());
    sort_by_cost_descending(std::span(plan.tiles).subspan(static_cast<size_t>(pass.tile_begin)), scratch);
  }
  return {};
}

}  // namespace mlaprefill
