// Panels of 64 columns: [depth][64] for float32, [depth / 2][64][2] for bf16; in both, rows of 64 words.
#pragma once

#include "backend/cpu/kernels/convert-inl.h"

namespace mlaprefill::cpu {
namespace {

HWY_INLINE void zero_words(uint32_t* words, int64_t count) {
  __builtin_memset(words, 0, static_cast<size_t>(count) * sizeof(uint32_t));
}

HWY_INLINE uint32_t load_word(const void* words, int64_t index) {
  uint32_t word;
  __builtin_memcpy(&word, static_cast<const char*>(words) + index * 4, sizeof word);
  return word;
}

/// Transposes 4 words of each of 4 rows into 4 panel rows, 4 columns wide.
HWY_INLINE void transpose_4x4(const uint32_t* const rows[4], int64_t word, uint32_t* panel) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t w = 0; w < 4; ++w) {
    for (int64_t r = 0; r < 4; ++r) panel[w * kPanelColumns + r] = load_word(rows[r], word + w);
  }
#else
  const hn::CappedTag<uint32_t, 4> d32;
  const hn::Repartition<uint64_t, decltype(d32)> d64;
  const auto a = hn::LoadU(d32, rows[0] + word), b = hn::LoadU(d32, rows[1] + word);
  const auto c = hn::LoadU(d32, rows[2] + word), d = hn::LoadU(d32, rows[3] + word);
  const auto ab01 = hn::BitCast(d64, hn::InterleaveLower(d32, a, b));
  const auto cd01 = hn::BitCast(d64, hn::InterleaveLower(d32, c, d));
  const auto ab23 = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
  const auto cd23 = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
  hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d64, ab01, cd01)), d32, panel);
  hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d64, ab01, cd01)), d32, panel + kPanelColumns);
  hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d64, ab23, cd23)), d32, panel + 2 * kPanelColumns);
  hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d64, ab23, cd23)), d32, panel + 3 * kPanelColumns);
#endif
}

template <typename Storage>
void pack_transposed(const void* rows, int64_t row_stride, int64_t count, int64_t columns, void* panel) {
  const int64_t words = columns * static_cast<int64_t>(sizeof(Storage)) / 4;
  auto* target = static_cast<uint32_t*>(panel);
  const auto word_row = [&](int64_t r) {
    return reinterpret_cast<const uint32_t*>(static_cast<const Storage*>(rows) + r * row_stride);
  };
  if (count < kPanelColumns) zero_words(target, words * kPanelColumns);
  int64_t r = 0;
  for (; r + 4 <= count; r += 4) {
    const uint32_t* const group[4] = {word_row(r), word_row(r + 1), word_row(r + 2), word_row(r + 3)};
    for (const uint32_t* row : group) {
      prefetch_row(row, kPrefetchRows * row_stride * static_cast<int64_t>(sizeof(Storage)), words * 4);
    }
    for (int64_t w = 0; w < words; w += 4) transpose_4x4(group, w, target + w * kPanelColumns + r);
  }
  for (; r < count; ++r) {
    for (int64_t w = 0; w < words; ++w) target[w * kPanelColumns + r] = load_word(word_row(r), w);
  }
}

}  // namespace
}  // namespace mlaprefill::cpu
