// bf16 kernels on AMX tiles.
#include "backend/cpu/kernels/bf16-inl.h"

namespace mlaprefill::cpu {
namespace {

constexpr int64_t kTileRowsAmx = 16;
constexpr int64_t kTileDepth = 32;  ///< bf16 elements in a tile row of A
constexpr int64_t kTileColumnsAmx = 16;
// Of B: from a row of a tile, a tile and a step in depth to the next.
constexpr int64_t kTileRowBytes = 4 * TilePanel::kRowPitch;
constexpr int64_t kTileBytes = 4 * TilePanel::word(0, kTileColumnsAmx);
constexpr int64_t kStepBytes = 4 * TilePanel::word(kTileRowsAmx, 0);

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

void configure_tiles() {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
}

void release_tiles() { _tile_release(); }

const char* tile_of_b(const MultiplyArgs::Segment& segment, int64_t column, int64_t depth) {
  return static_cast<const char*>(segment.b) + depth / kTileDepth * kStepBytes +
         column / kTileColumnsAmx * kTileBytes;
}

// Loads of a step stand before its products: where another thread uses the core's second half, tiles are not
// renamed, and a load amid products waits for all of them.

/// Asks for the next step's tile of B while the products of this one run. Tiles of A are left to the
/// hardware: asking for them too would cost more than it saves.
HWY_INLINE void prefetch_tile_of_b(const char* b) {
  const char* next = b + kStepBytes;
  MLAPREFILL_UNROLL
  for (int64_t row = 0; row < kTileRowsAmx; ++row) __builtin_prefetch(next + row * kTileRowBytes);
}

/// 32 rows x 32 columns of C in tiles 0..3; A in 4 and 5, B in 6 and 7.
HWY_INLINE void multiply_32x32(const MultiplyArgs& args, int64_t row, int64_t column) {
  float* c = args.c + row * args.c_stride + column;
  float* c_below = c + kTileRowsAmx * args.c_stride;
  const auto c_bytes = static_cast<size_t>(args.c_stride * 4);
  if (args.accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kTileColumnsAmx, c_bytes);
    _tile_loadd(2, c_below, c_bytes);
    _tile_loadd(3, c_below + kTileColumnsAmx, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int32_t s = 0; s < args.num_segments; ++s) {
    const MultiplyArgs::Segment& segment = args.segments[s];
    const uint16_t* a = static_cast<const uint16_t*>(segment.a) + row * segment.a_stride;
    const uint16_t* a_below = a + kTileRowsAmx * segment.a_stride;
    const auto a_bytes = static_cast<size_t>(segment.a_stride * 2);
    for (int64_t k = 0; k < segment.depth; k += kTileDepth) {
      const char* b = tile_of_b(segment, column, k);
      _tile_loadd(6, b, kTileRowBytes);
      _tile_loadd(4, a + k, a_bytes);
      _tile_loadd(7, b + kTileBytes, kTileRowBytes);
      _tile_loadd(5, a_below + k, a_bytes);
      _tile_dpbf16ps(0, 4, 6);
      prefetch_tile_of_b(b);
      _tile_dpbf16ps(1, 4, 7);
      prefetch_tile_of_b(b + kTileBytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTileColumnsAmx, c_bytes);
  _tile_stored(2, c_below, c_bytes);
  _tile_stored(3, c_below + kTileColumnsAmx, c_bytes);
}

/// The last 16 rows: 16 x 64 of C in tiles 0..3; A in 4, B in 5, 6 and 7.
HWY_INLINE void multiply_16x64(const MultiplyArgs& args, int64_t row) {
  float* c = args.c + row * args.c_stride;
  const auto c_bytes = static_cast<size_t>(args.c_stride * 4);
  if (args.accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kTileColumnsAmx, c_bytes);
    _tile_loadd(2, c + 2 * kTileColumnsAmx, c_bytes);
    _tile_loadd(3, c + 3 * kTileColumnsAmx, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int32_t s = 0; s < args.num_segments; ++s) {
    const MultiplyArgs::Segment& segment = args.segments[s];
    const uint16_t* a = static_cast<const uint16_t*>(segment.a) + row * segment.a_stride;
    const auto a_bytes = static_cast<size_t>(segment.a_stride * 2);
    for (int64_t k = 0; k < segment.depth; k += kTileDepth) {
      const char* b = tile_of_b(segment, 0, k);
      _tile_loadd(4, a + k, a_bytes);
      _tile_loadd(5, b, kTileRowBytes);
      _tile_loadd(6, b + kTileBytes, kTileRowBytes);
      _tile_loadd(7, b + 2 * kTileBytes, kTileRowBytes);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(5, b + 3 * kTileBytes, kTileRowBytes);
      _tile_dpbf16ps(1, 4, 6);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTileColumnsAmx, c_bytes);
  _tile_stored(2, c + 2 * kTileColumnsAmx, c_bytes);
  _tile_stored(3, c + 3 * kTileColumnsAmx, c_bytes);
}

void multiply_by_tiles(const MultiplyArgs& args) {
  int64_t row = 0;
  for (; row + kTileRowsAmx < args.rows; row += 2 * kTileRowsAmx) {
    for (int64_t column = 0; column < args.columns; column += 2 * kTileColumnsAmx) {
      multiply_32x32(args, row, column);
    }
  }
  if (row < args.rows) multiply_16x64(args, row);
}

constexpr KernelTable amx_table() {
  KernelTable table = bf16_table<TilePanel>(IsaLevel::kAmxBf16, multiply_by_tiles);
  table.depth_multiple = kTileDepth;
  table.row_multiple = kTileRowsAmx;
  table.strip_rows = 32;
  table.trim_columns = kTileDepth;
  // Small and deep: 132 KiB of scores, and sums are read and written once for 1,024 keys.
  table.query_block = 32;
  table.key_block = 1024;
  table.enter = configure_tiles;
  table.leave = release_tiles;
  return table;
}

}  // namespace

const KernelTable kAmxBf16Kernels = amx_table();

}  // namespace mlaprefill::cpu
