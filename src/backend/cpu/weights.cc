#include "backend/cpu/weights.h"

#include <algorithm>
#include <cstring>

#include "core/checked.h"

namespace mlaprefill::cpu {

PackedWeights::PackedWeights(const KernelTable& kernels, const MlaDims& dims, const ConstTensor& kv_b_proj)
    : kernels_(&kernels),
      padded_rank_(round_up(dims.kv_lora_rank, kernels.depth_multiple)),
      key_panels_(ceil_div(dims.qk_nope_head_dim, kPanelColumns)),
      panels_per_head_(key_panels_ + ceil_div(dims.v_head_dim, kPanelColumns)),
      panel_bytes_(padded_rank_ * kPanelColumns * kernels.operand_bytes) {
  panels_ = buffer_.reserve<std::byte>(dims.num_heads * panels_per_head_ * panel_bytes_);
  AlignedBuffer row_buffer;
  ConvertArgs convert;
  convert.source_dtype = kv_b_proj.dtype;
  convert.source_stride = kv_b_proj.stride[0];
  convert.columns = dims.kv_lora_rank;
  convert.padded_columns = padded_rank_;
  convert.target = row_buffer.reserve<std::byte>(kPanelColumns * padded_rank_ * kernels.operand_bytes);
  convert.target_stride = padded_rank_;
  const auto* source = static_cast<const std::byte*>(kv_b_proj.data);
  std::byte* panel = panels_;
  const auto pack = [&](int64_t rows) {
    for (int64_t row = 0; row < rows; row += kPanelColumns, panel += panel_bytes_) {
      convert.source = source;
      convert.rows = std::min(kPanelColumns, rows - row);
      kernels.convert_rows(convert);
      kernels.pack_transposed(convert.target, padded_rank_, convert.rows, padded_rank_, panel);
      source += convert.rows * kv_b_proj.stride[0] * size_bytes(kv_b_proj.dtype);
    }
  };
  for (int64_t head = 0; head < dims.num_heads; ++head) {
    pack(dims.qk_nope_head_dim);
    pack(dims.v_head_dim);
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
