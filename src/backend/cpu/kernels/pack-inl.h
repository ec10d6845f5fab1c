// Panels of 64 columns: [depth][64] for float32, [depth / 2][64][2] for bf16; in both, a matrix of words.
#pragma once

#include "backend/cpu/kernels/convert-inl.h"

namespace mlaprefill::cpu {
namespace {

/// Where the words of a panel lie: row after row.
struct RowPanel {
  static constexpr int64_t kRowPitch = kPanelColumns;
  static constexpr int64_t word(int64_t row, int64_t column) { return row * kPanelColumns + column; }
};

/// In tiles of 16 x 16 words, the four of 16 rows one after the other.
struct TilePanel {
  static constexpr int64_t kRowPitch = 16;  ///< within a tile
  static constexpr int64_t word(int64_t row, int64_t column) {
    return row / 16 * (16 * kPanelColumns) + column / 16 * 256 + row % 16 * kRowPitch + column % 16;
  }
};

HWY_INLINE void zero_words(uint32_t* words, int64_t count) {
  __builtin_memset(words, 0, static_cast<size_t>(count) * sizeof(uint32_t));
}

HWY_INLINE uint32_t load_word(const void* words, int64_t index) {
  uint32_t word;
  __builtin_memcpy(&word, static_cast<const char*>(words) + index * 4, sizeof word);
  return word;
}

// Rows transposed at once: 4 for each 16-byte block of a vector.
constexpr int64_t kTransposedRows = kLanes < 4 ? 4 : kLanes;

#if HWY_TARGET == HWY_SCALAR
template <class Panel>
HWY_INLINE void transpose_4_words(const uint32_t* const* rows, int64_t count, int64_t word,
                                  uint32_t* target) {
  for (int64_t w = 0; w < 4; ++w) {
    for (int64_t r = 0; r < count; ++r) target[w * Panel::kRowPitch + r] = load_word(rows[r], word + w);
  }
}
#else
/// 4 words of rows r, r + 4, r + 8 ..., one row in each 16-byte block.
HWY_INLINE WordVec load_blocks(const uint32_t* const* rows, int64_t r, int64_t word) {
  WordVec blocks = hn::LoadDup128(kWords, rows[r] + word);
  MLAPREFILL_UNROLL
  for (int64_t block = 1; block < kLanes / 4; ++block) {
    const auto before = hn::FirstN(kWords, static_cast<size_t>(4 * block));
    blocks = hn::IfThenElse(before, blocks, hn::LoadDup128(kWords, rows[r + 4 * block] + word));
  }
  return blocks;
}

/// Transposes 4 words of each of kTransposedRows rows into 4 panel rows; rows from `count` on become 0.
template <class Panel>
HWY_INLINE void transpose_4_words(const uint32_t* const* rows, int64_t count, int64_t word,
                                  uint32_t* target) {
  const hn::Repartition<uint64_t, WordTag> pairs;
  const WordVec a = load_blocks(rows, 0, word), b = load_blocks(rows, 1, word);
  const WordVec c = load_blocks(rows, 2, word), d = load_blocks(rows, 3, word);
  const auto ab01 = hn::BitCast(pairs, hn::InterleaveLower(kWords, a, b));
  const auto cd01 = hn::BitCast(pairs, hn::InterleaveLower(kWords, c, d));
  const auto ab23 = hn::BitCast(pairs, hn::InterleaveUpper(kWords, a, b));
  const auto cd23 = hn::BitCast(pairs, hn::InterleaveUpper(kWords, c, d));
  const auto real = hn::FirstN(kWords, static_cast<size_t>(count));
  const auto store = [&](auto words, int64_t w) {
    hn::StoreU(hn::IfThenElseZero(real, hn::BitCast(kWords, words)), kWords, target + w * Panel::kRowPitch);
  };
  store(hn::InterleaveLower(pairs, ab01, cd01), 0);
  store(hn::InterleaveUpper(pairs, ab01, cd01), 1);
  store(hn::InterleaveLower(pairs, ab23, cd23), 2);
  store(hn::InterleaveUpper(pairs, ab23, cd23), 3);
}
#endif

template <typename Storage, class Panel = RowPanel>
void pack_transposed(const void* rows, int64_t row_stride, int64_t count, int64_t columns, void* panel) {
  const int64_t words = columns * static_cast<int64_t>(sizeof(Storage)) / 4;
  auto* target = static_cast<uint32_t*>(panel);
  const auto word_row = [&](int64_t r) {
    return reinterpret_cast<const uint32_t*>(static_cast<const Storage*>(rows) + r * row_stride);
  };
  if (count < kPanelColumns) zero_words(target, words * kPanelColumns);
  for (int64_t r = 0; r < count; r += kTransposedRows) {
    const int64_t group_rows = count - r < kTransposedRows ? count - r : kTransposedRows;
    const uint32_t* group[kTransposedRows];
    for (int64_t i = 0; i < kTransposedRows; ++i) {
      group[i] = word_row(i < group_rows ? r + i : r);
      prefetch_row(group[i], kPrefetchRows * row_stride * static_cast<int64_t>(sizeof(Storage)), words * 4);
    }
    for (int64_t w = 0; w < words; w += 4) {
      transpose_4_words<Panel>(group, group_rows, w, target + Panel::word(w, r));
    }
  }
}

}  // namespace
}  // namespace mlaprefill::cpu
