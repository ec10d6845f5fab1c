#include "backend/cpu/up_projection.h"

#include <algorithm>
#include <cstring>

namespace mlaprefill::cpu {
namespace {

// Products are computed for whole multiples of so many keys; beyond the last key, latents are 0.
constexpr int64_t kKeyRows = 16;

}  // namespace

const float* UpProjection::multiply(const PackedWeights& weights, const std::byte* weight_panel,
                                    const std::byte* latent_rows, int64_t latent_stride, int64_t count) {
  MultiplyArgs args;
  args.rows = count;
  args.segments[0] = {latent_rows, weight_panel, latent_stride, weights.padded_rank()};
  args.c = product_;
  args.c_stride = kStride;
  weights.kernels().multiply(args);
  return args.c;
}

void ChunkProjector::reserve(const FlashShape& shape, int64_t keys) {
  const int64_t panels = ceil_div(keys, kPanelColumns);
  const int64_t operand_bytes = shape.kernels->operand_bytes;
  product_.reserve();
  key_rows_ = row_buffer_.reserve<std::byte>(
      kPanelColumns * row_stride(shape.padded_depth(0), operand_bytes) * operand_bytes);
  keys_ = key_buffer_.reserve<std::byte>(panels * shape.key_panel_bytes(0));
  values_ =
      value_buffer_.reserve<std::byte>(panels * kPanelColumns * shape.padded_v_columns() * operand_bytes);
  finite_ = finite_buffer_.reserve<bool>(panels);
}

void ChunkProjector::project_keys(const FlashShape& shape, const PackedWeights& weights, DType working_dtype,
                                  const LatentStore& store, int64_t store_key, int64_t count, int64_t head,
                                  std::byte* key_panel) {
  const KernelTable& kernels = *shape.kernels;
  const int64_t padded = shape.padded_depth(0);
  const int64_t stride = row_stride(padded, kernels.operand_bytes);
  ConvertArgs args;
  args.source_stride = UpProjection::kStride;
  args.rows = count;
  args.rounding = working_dtype;
  args.target_stride = stride;
  for (int64_t column = 0; column < shape.depths[0]; column += kPanelColumns) {
    args.source = product_.multiply(weights, weights.keys(head, column / kPanelColumns),
                                    store.rows(store_key), store.row_stride(), round_up(count, kKeyRows));
    args.columns = std::min(kPanelColumns, shape.depths[0] - column);
    args.padded_columns = std::min(kPanelColumns, padded - column);
    args.target = key_rows_ + column * kernels.operand_bytes;
    kernels.convert_rows(args);
  }
  kernels.pack_transposed(key_rows_, stride, count, padded, key_panel);
}

KeyChunk ChunkProjector::project(const FlashShape& shape, const PackedWeights& weights, DType working_dtype,
                                 const LatentStore& store, const RequestGroup& group, int64_t head,
                                 int64_t key_begin, int64_t key_end) {
  const KernelTable& kernels = *shape.kernels;
  reserve(shape, key_end - key_begin);
  const int64_t panels = ceil_div(key_end - key_begin, kPanelColumns);
  const int64_t block_bytes = kPanelColumns * kPanelColumns * kernels.operand_bytes;
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
    const int64_t store_key = group.key_begin + key;
    const int64_t count = std::min(kPanelColumns, key_end - key);
    project_keys(shape, weights, working_dtype, store, store_key, count, head,
                 keys_ + panel * shape.key_panel_bytes(0));

    // Keys the panel lacks must have values of 0; the store has latents of 0 for them.
    const int64_t rows = round_up(count, kKeyRows);
    const int64_t packed_bytes = rows * kPanelColumns * kernels.operand_bytes;
    finite_[panel] = true;
    for (int64_t v = 0; v < shape.padded_v_columns() / kPanelColumns; ++v) {
      const float* product = product_.multiply(weights, weights.values(head, v), store.rows(store_key),
                                               store.row_stride(), rows);
      std::byte* value_panel = values_ + v * chunk.value_panel_bytes + panel * block_bytes;
      const bool all_finite =
          kernels.pack_product(product, UpProjection::kStride, rows, working_dtype, value_panel);
      std::memset(value_panel + packed_bytes, 0, static_cast<size_t>(block_bytes - packed_bytes));
      finite_[panel] = finite_[panel] && all_finite;
    }
  }
  return chunk;
}

}  // namespace mlaprefill::cpu
