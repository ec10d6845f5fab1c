// The table of float32 kernels of the target a kernel file is compiled for.
#pragma once

#include "backend/cpu/kernels/multiply-inl.h"
#include "backend/cpu/kernels/pack-inl.h"
#include "backend/cpu/kernels/softmax-inl.h"

namespace mlaprefill::cpu {
namespace {

bool pack_rows_f32(const void* rows, int64_t row_stride, int64_t count, int64_t padded_count, int64_t columns,
                   void* panel) {
  FiniteCheck check;
  auto* target = static_cast<float*>(panel);
  for (int64_t r = 0; r < count; ++r, target += kPanelColumns) {
    const float* row = static_cast<const float*>(rows) + r * row_stride;
    prefetch_row(row, kPrefetchRows * row_stride * 4, columns * 4);
    for (int64_t i = 0; i < columns; i += kLanes) {
      const FloatVec v = load(row + i);
      check.see(v);
      store(v, target + i);
    }
    for (int64_t i = columns; i < kPanelColumns; ++i) target[i] = 0.0f;
  }
  zero_words(reinterpret_cast<uint32_t*>(target), (padded_count - count) * kPanelColumns);
  return check.all_finite();
}

bool pack_product_f32(const float* rows, int64_t row_stride, int64_t count, int64_t padded_count,
                      DType rounding, void* panel) {
  FiniteCheck check;
  auto* target = static_cast<float*>(panel);
  for (int64_t r = 0; r < count; ++r, target += kPanelColumns) {
    for (int64_t i = 0; i < kPanelColumns; i += kLanes) {
      const FloatVec v = round_to(load(rows + r * row_stride + i), rounding);
      check.see(v);
      store(v, target + i);
    }
  }
  zero_words(reinterpret_cast<uint32_t*>(target), (padded_count - count) * kPanelColumns);
  return check.all_finite();
}

constexpr KernelTable f32_table(IsaLevel level) {
  return {.level = level,
          .operand = Operand::kF32,
          .operand_bytes = 4,
          .depth_multiple = 1,
          .row_multiple = 1,
          .strip_rows = 12,
          .trim_columns = 16,
          .query_block = 96,
          .key_block = 256,
          .panel_index = RowPanel::word,
          .enter = do_nothing,
          .leave = do_nothing,
          .convert_rows = convert_rows<float>,
          .pack_transposed = pack_transposed<float>,
          .pack_rows = pack_rows_f32,
          .pack_product = pack_product_f32,
          .multiply = multiply<F32Lanes>,
          .softmax = softmax<float>,
          .finish = finish};
}

}  // namespace
}  // namespace mlaprefill::cpu
