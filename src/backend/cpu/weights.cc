#include "backend/cpu/weights.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/flash.h"

namespace mlaprefill::cpu {

PackedWeights::PackedWeights(const KernelTable& kernels, const MlaDims& dims, const ConstTensor& kv_b_proj)
    : kernels_(&kernels),
      padded_rank_(round_up(dims.kv_lora_rank, kernels.depth_multiple)),
      key_stride_(row_stride(padded_rank_, kernels.operand_bytes)),
      key_bytes_(dims.qk_nope_head_dim * key_stride_ * kernels.operand_bytes),
      value_panels_(round_up(dims.v_head_dim, kPanelColumns) / kPanelColumns),
      value_panel_bytes_(padded_rank_ * kPanelColumns * kernels.operand_bytes) {
  const int64_t heads = dims.num_heads;
  keys_ = key_buffer_.reserve<std::byte>(heads * key_bytes_);
  values_ = value_buffer_.reserve<std::byte>(heads * value_panels_ * value_panel_bytes_);
  AlignedBuffer row_buffer;

  ConvertArgs convert;
  convert.source_dtype = kv_b_proj.dtype;
  convert.source_stride = kv_b_proj.stride[0];
  convert.columns = dims.kv_lora_rank;
  convert.padded_columns = padded_rank_;
  const auto weight_rows = [&](int64_t row) {
    return static_cast<const std::byte*>(kv_b_proj.data) +
           row * kv_b_proj.stride[0] * size_bytes(kv_b_proj.dtype);
  };
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t first = head * dims.expanded_head_dim();
    convert.source = weight_rows(first);
    convert.rows = dims.qk_nope_head_dim;
    convert.target = keys_ + head * key_bytes_;
    convert.target_stride = key_stride_;
    kernels.convert_rows(convert);
    for (int64_t panel = 0; panel < value_panels_; ++panel) {
      const int64_t column = panel * kPanelColumns;
      convert.source = weight_rows(first + dims.qk_nope_head_dim + column);
      convert.rows = std::min(kPanelColumns, dims.v_head_dim - column);
      convert.target = row_buffer.reserve<std::byte>(kPanelColumns * padded_rank_ * kernels.operand_bytes);
      convert.target_stride = padded_rank_;
      kernels.convert_rows(convert);
      kernels.pack_transposed(convert.target, padded_rank_, convert.rows, padded_rank_,
                              values_ + (head * value_panels_ + panel) * value_panel_bytes_);
    }
  }
}

CpuWeights::CpuWeights(IsaLevel level, const MlaDims& dims, const ConstTensor& kv_b_proj)
    : level_(level), dims_(dims), dtype_(kv_b_proj.dtype) {
  const int64_t rows = kv_b_proj.shape[0];
  const int64_t row_bytes = kv_b_proj.shape[1] * size_bytes(dtype_);
  auto* copy = copy_.reserve<std::byte>(rows * row_bytes);
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(
        copy + row * row_bytes,
        static_cast<const std::byte*>(kv_b_proj.data) + row * kv_b_proj.stride[0] * size_bytes(dtype_),
        static_cast<size_t>(row_bytes));
  }
  tensor_ = ConstTensor(copy, dtype_, {rows, kv_b_proj.shape[1]});
  packed(dtype_ == DType::kBF16 ? bf16_operand(level) : Operand::kF32);
}

const PackedWeights& CpuWeights::packed(Operand operand) const {
  const auto index = static_cast<size_t>(operand);
  std::call_once(once_[index], [&] {
    packed_[index] = std::make_unique<PackedWeights>(*kernel_table(level_, operand), dims_, tensor_);
  });
  return *packed_[index];
}

}  // namespace mlaprefill::cpu
