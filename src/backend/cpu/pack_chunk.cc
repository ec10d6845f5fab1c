#include "backend/cpu/pack_chunk.h"

#include <algorithm>

namespace mlaprefill::cpu {

HeadRows head_rows(const ConstTensor& tensor, int64_t first_row, int64_t head) {
  HeadRows rows;
  rows.dtype = tensor.dtype;
  rows.row_stride = tensor.stride[0];
  const int64_t offset = first_row * tensor.stride[0] + (tensor.rank == 3 ? head * tensor.stride[1] : 0);
  rows.data = static_cast<const std::byte*>(tensor.data) + offset * size_bytes(tensor.dtype);
  return rows;
}

void ChunkPacker::reserve(const FlashShape& shape, int64_t keys) {
  const int64_t panels = ceil_div(keys, kPanelColumns);
  const int64_t operand_bytes = shape.kernels->operand_bytes;
  for (int part = 0; part < 2; ++part) {
    keys_[part] = key_buffer_[part].reserve<std::byte>(panels * shape.key_panel_bytes(part));
  }
  values_ =
      value_buffer_.reserve<std::byte>(panels * kPanelColumns * shape.padded_v_columns() * operand_bytes);
  finite_ = finite_buffer_.reserve<bool>(panels);
  const int64_t columns = std::max({shape.padded_depth(0), shape.padded_depth(1), shape.v_columns});
  rows_ = row_buffer_.reserve<std::byte>(kPanelColumns * columns * operand_bytes);
}

KeyChunk ChunkPacker::pack(const FlashShape& shape, const HeadRows keys[2], const HeadRows& values,
                           int64_t key_begin, int64_t key_end) {
  reserve(shape, key_end - key_begin);
  const int64_t panels = ceil_div(key_end - key_begin, kPanelColumns);
  KeyChunk chunk;
  chunk.key_begin = key_begin;
  chunk.key_end = key_end;
  for (int part = 0; part < 2; ++part) {
    if (shape.depths[part] == 0) continue;
    pack_keys(shape, part, keys[part], key_begin, key_end, keys_[part]);
    chunk.keys[part] = keys_[part];
  }
  chunk.value_panel_bytes = panels * kPanelColumns * kPanelColumns * shape.kernels->operand_bytes;
  pack_values(shape, values, chunk, values_, finite_);
  chunk.values = values_;
  chunk.values_finite = finite_;
  return chunk;
}

const void* ChunkPacker::operand_rows(const KernelTable& kernels, const HeadRows& rows, int64_t first,
                                      int64_t count, int64_t columns, int64_t padded_columns,
                                      int64_t* stride) {
  const DType operand_dtype = kernels.operand == Operand::kBF16 ? DType::kBF16 : DType::kF32;
  if (rows.dtype == operand_dtype && columns == padded_columns) {
    *stride = rows.row_stride;
    return rows.row(first);
  }
  *stride = padded_columns;
  ConvertArgs args;
  args.source = rows.row(first);
  args.source_dtype = rows.dtype;
  args.source_stride = rows.row_stride;
  args.rows = count;
  args.columns = columns;
  args.padded_columns = padded_columns;
  args.target = rows_;
  args.target_stride = padded_columns;
  kernels.convert_rows(args);
  return args.target;
}

void ChunkPacker::pack_keys(const FlashShape& shape, int part, const HeadRows& keys, int64_t key_begin,
                            int64_t key_end, std::byte* target) {
  const KernelTable& kernels = *shape.kernels;
  const int64_t padded = shape.padded_depth(part);
  for (int64_t key = key_begin; key < key_end; key += kPanelColumns) {
    const int64_t count = std::min(kPanelColumns, key_end - key);
    int64_t stride = 0;
    const void* rows = operand_rows(kernels, keys, key, count, shape.depths[part], padded, &stride);
    kernels.pack_transposed(rows, stride, count, padded, target);
    target += shape.key_panel_bytes(part);
  }
}

void ChunkPacker::pack_values(const FlashShape& shape, const HeadRows& values, const KeyChunk& chunk,
                              std::byte* target, bool* finite) {
  const KernelTable& kernels = *shape.kernels;
  const int64_t block_bytes = kPanelColumns * kPanelColumns * kernels.operand_bytes;
  for (int64_t key = chunk.key_begin; key < chunk.key_end; key += kPanelColumns) {
    const int64_t count = std::min(kPanelColumns, chunk.key_end - key);
    const int64_t block = (key - chunk.key_begin) / kPanelColumns;
    int64_t stride = 0;
    const void* rows = operand_rows(kernels, values, key, count, shape.v_columns, shape.v_columns, &stride);
    finite[block] = true;
    for (int64_t v = 0; v < shape.v_columns; v += kPanelColumns) {
      const int64_t columns = std::min(kPanelColumns, shape.v_columns - v);
      const auto* from = static_cast<const std::byte*>(rows) + v * kernels.operand_bytes;
      std::byte* to = target + v / kPanelColumns * chunk.value_panel_bytes + block * block_bytes;
      const bool all_finite = kernels.pack_rows(from, stride, count, kPanelColumns, columns, to);
      finite[block] = finite[block] && all_finite;
    }
  }
}

}  // namespace mlaprefill::cpu
