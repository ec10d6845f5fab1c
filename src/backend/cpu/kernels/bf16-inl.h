// What the two levels with AVX512_BF16 share: conversions by instruction and a table without a product.
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels/multiply-inl.h"
#include "backend/cpu/kernels/pack-inl.h"
#include "backend/cpu/kernels/softmax-inl.h"

namespace mlaprefill::cpu {
namespace {

/// Element (depth, column) of a panel of pairs.
template <class Panel>
int64_t pair_index(int64_t depth, int64_t column) {
  return 2 * Panel::word(depth / 2, column) + depth % 2;
}

template <class Panel>
void zero_rows(uint32_t* panel, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t i = 0; i < kPanelColumns; i += kLanes) zero_words(panel + Panel::word(row, i), kLanes);
  }
}

template <class Panel>
bool pack_rows_bf16(const void* rows, int64_t row_stride, int64_t count, int64_t padded_count,
                    int64_t columns, void* panel) {
  FiniteCheck check;
  auto* target = static_cast<uint32_t*>(panel);
  for (int64_t r = 0; r < count; r += 2) {
    const uint16_t* even = static_cast<const uint16_t*>(rows) + r * row_stride;
    const bool has_odd = r + 1 < count;
    prefetch_row(even, kPrefetchRows * row_stride * 2, columns * 2);
    prefetch_row(even, (kPrefetchRows + 1) * row_stride * 2, columns * 2);
    for (int64_t i = 0; i < columns; i += kLanes) {
      const WordVec low = hn::PromoteTo(kWords, hn::LoadU(kHalves, even + i));
      const WordVec odd =
          has_odd ? hn::PromoteTo(kWords, hn::LoadU(kHalves, even + row_stride + i)) : hn::Zero(kWords);
      const WordVec high = hn::ShiftLeft<16>(odd);
      check.see(hn::BitCast(kFloats, hn::ShiftLeft<16>(low)));
      check.see(hn::BitCast(kFloats, high));
      hn::StoreU(hn::Or(low, high), kWords, target + Panel::word(r / 2, i));
    }
    for (int64_t i = columns; i < kPanelColumns; ++i) target[Panel::word(r / 2, i)] = 0;
  }
  zero_rows<Panel>(target, (count + 1) / 2, padded_count / 2);
  return check.all_finite();
}

template <class Panel>
bool pack_product_by_integers(const float* rows, int64_t row_stride, int64_t count, DType rounding,
                              uint32_t* panel) {
  FiniteCheck check;
  for (int64_t r = 0; r < count; r += 2) {
    const float* even = rows + r * row_stride;
    for (int64_t i = 0; i < kPanelColumns; i += kLanes) {
      const WordVec low = bf16_in_upper_half(round_to(load(even + i), rounding));
      const WordVec high = bf16_in_upper_half(round_to(load(even + row_stride + i), rounding));
      check.see(hn::BitCast(kFloats, low));
      check.see(hn::BitCast(kFloats, high));
      hn::StoreU(hn::Or(hn::ShiftRight<16>(low), high), kWords, panel + Panel::word(r / 2, i));
    }
  }
  return check.all_finite();
}

/// Interleaves pairs of float32 rows into a bf16 panel, 32 values an instruction.
template <class Panel>
bool interleave_product(const float* rows, int64_t row_stride, int64_t count, uint32_t* panel) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i order = _mm512_load_si512(kInterleave);
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i largest = _mm512_setzero_si512();
  for (int64_t r = 0; r < count; r += 2) {
    const float* even = rows + r * row_stride;
    const float* odd = even + row_stride;
    MLAPREFILL_UNROLL
    for (int64_t i = 0; i < kPanelColumns; i += 16) {
      const auto both = (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(odd + i), _mm512_loadu_ps(even + i));
      largest = _mm512_max_epu16(largest, _mm512_and_si512(both, magnitude));
      _mm512_storeu_si512(panel + Panel::word(r / 2, i), _mm512_permutexvar_epi16(order, both));
    }
  }
  return _mm512_cmpge_epu16_mask(largest, _mm512_set1_epi16(0x7F80)) == 0;
}

template <class Panel>
bool pack_product_bf16(const float* rows, int64_t row_stride, int64_t count, int64_t padded_count,
                       DType rounding, void* panel) {
  auto* target = static_cast<uint32_t*>(panel);
  zero_rows<Panel>(target, count / 2, padded_count / 2);
  if (rounding == DType::kF16) {
    return pack_product_by_integers<Panel>(rows, row_stride, count, rounding, target);
  }
  return interleave_product<Panel>(rows, row_stride, count, target);
}

template <class Panel>
constexpr KernelTable bf16_table(IsaLevel level, void (*multiply_rows)(const MultiplyArgs&)) {
  return {.level = level,
          .operand = Operand::kBF16,
          .operand_bytes = 2,
          .depth_multiple = 2,
          .row_multiple = 1,
          .strip_rows = 12,
          .trim_columns = 16,
          .query_block = 96,
          .key_block = 256,
          .panel_index = pair_index<Panel>,
          .enter = do_nothing,
          .leave = do_nothing,
          .convert_rows = convert_rows<uint16_t>,
          .pack_transposed = pack_transposed<uint16_t, Panel>,
          .pack_rows = pack_rows_bf16<Panel>,
          .pack_product = pack_product_bf16<Panel>,
          .multiply = multiply_rows,
          .softmax = softmax<uint16_t>,
          .finish = finish};
}

}  // namespace
}  // namespace mlaprefill::cpu
