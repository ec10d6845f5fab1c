#include "backend/cpu/up_projection.h"

#include <algorithm>

namespace mlaprefill::cpu {
namespace {

// Products are computed for whole multiples of so many keys; beyond the last key, latents are 0.
constexpr int64_t kKeyRows = 16;

}  // namespace

void UpProjection::reserve(const PackedWeights& weights) {
  stride_ = row_stride(weights.panels_per_head() * kPanelColumns, sizeof(float));
  product_ = buffer_.reserve<float>(kPanelColumns * stride_);
  values_ = product_ + weights.first_value_column();
}

// All panels before any is packed: a tile unit that waits for longer than 300 ns takes as long to wake.
void UpProjection::multiply(const PackedWeights& weights, int64_t head, const std::byte* latent_rows,
                            int64_t latent_stride, int64_t count) {
  const KernelTable& kernels = weights.kernels();
  MultiplyArgs args;
  args.c_stride = stride_;
  for (int64_t row = 0; row < count; row += kernels.query_block) {
    args.rows = std::min(kernels.query_block, count - row);
    const std::byte* rows = latent_rows + row * latent_stride * kernels.operand_bytes;
    for (int64_t panel = 0; panel < weights.panels_per_head(); ++panel) {
      args.segments[0] = {rows, weights.panel(head, panel), latent_stride, weights.padded_rank()};
      args.c = product_ + row * stride_ + panel * kPanelColumns;
      kernels.multiply(args);
    }
  }
}

void ChunkProjector::reserve(const FlashShape& shape, const PackedWeights& weights, int64_t keys) {
  const int64_t panels = ceil_div(keys, kPanelColumns);
  const int64_t operand_bytes = shape.kernels->operand_bytes;
  product_.reserve(weights);
  key_rows_ = row_buffer_.reserve<std::byte>(
      kPanelColumns * row_stride(shape.padded_depth(0), operand_bytes) * operand_bytes);
  keys_ = key_buffer_.reserve<std::byte>(panels * shape.key_panel_bytes(0));
  values_ =
      value_buffer_.reserve<std::byte>(panels * kPanelColumns * shape.padded_v_columns() * operand_bytes);
  finite_ = finite_buffer_.reserve<bool>(panels);
}

void ChunkProjector::pack_keys(const FlashShape& shape, DType working_dtype, int64_t count,
                               std::byte* panel) {
  const KernelTable& kernels = *shape.kernels;
  ConvertArgs args;
  args.source = product_.keys();
  args.source_stride = product_.stride();
  args.rows = count;
  args.columns = shape.depths[0];
  args.rounding = working_dtype;
  args.target = key_rows_;
  args.target_stride = row_stride(shape.padded_depth(0), kernels.operand_bytes);
  args.padded_columns = shape.padded_depth(0);
  kernels.convert_rows(args);
  kernels.pack_transposed(key_rows_, args.target_stride, count, args.padded_columns, panel);
}

bool ChunkProjector::pack_values(const FlashShape& shape, DType working_dtype, int64_t rows, std::byte* panel,
                                 int64_t panel_bytes) {
  const KernelTable& kernels = *shape.kernels;
  bool finite = true;
  for (int64_t v = 0; v < shape.v_columns; v += kPanelColumns, panel += panel_bytes) {
    const bool panel_finite = kernels.pack_product(product_.values() + v, product_.stride(), rows,
                                                   kPanelColumns, working_dtype, panel);
    finite = finite && panel_finite;
  }
  return finite;
}

KeyChunk ChunkProjector::project(const FlashShape& shape, const PackedWeights& weights, DType working_dtype,
                                 const LatentStore& store, const RequestGroup& group, int64_t head,
                                 int64_t key_begin, int64_t key_end) {
  reserve(shape, weights, key_end - key_begin);
  const int64_t panels = ceil_div(key_end - key_begin, kPanelColumns);
  const int64_t block_bytes = kPanelColumns * kPanelColumns * shape.kernels->operand_bytes;
  KeyChunk chunk;
  chunk.key_begin = key_begin;
  chunk.key_end = key_end;
  chunk.value_panel_bytes = panels * block_bytes;
  chunk.keys[0] = keys_;
  chunk.keys[1] = store.rope_panel(group.key_begin + key_begin);
  chunk.values = values_;
  chunk.values_finite = finite_;
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t key = key_begin + panel * kPanelColumns;
    const int64_t count = std::min(kPanelColumns, key_end - key);
    // Keys the panel lacks must have values of 0; the store has latents of 0 for them.
    const int64_t rows = round_up(count, kKeyRows);
    product_.multiply(weights, head, store.rows(group.key_begin + key), store.row_stride(), rows);
    pack_keys(shape, working_dtype, count, keys_ + panel * shape.key_panel_bytes(0));
    finite_[panel] =
        pack_values(shape, working_dtype, rows, values_ + panel * block_bytes, chunk.value_panel_bytes);
  }
  return chunk;
}

}  // namespace mlaprefill::cpu
