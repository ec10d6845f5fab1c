#include "backend/cpu/up_projection.h"

#include <algorithm>
#include <cstring>

namespace mlaprefill::cpu {
namespace {

constexpr int64_t kValueRows = 16;

}  // namespace

void UpProjection::reserve(const MlaDims& dims) {
  product_ = buffer_.reserve<float>(std::max<int64_t>(dims.qk_nope_head_dim, kPanelColumns) * kStride);
}

const float* UpProjection::keys(const PackedWeights& weights, const MlaDims& dims,
                                const std::byte* latent_panel, int64_t count, int64_t head) {
  MultiplyArgs args;
  args.columns = count;
  args.rows = dims.qk_nope_head_dim;
  args.segments[0] = {weights.keys(head), latent_panel, weights.key_stride(), weights.padded_rank()};
  args.c = product_;
  args.c_stride = kStride;
  weights.kernels().multiply(args);
  return args.c;
}

const float* UpProjection::values(const PackedWeights& weights, const std::byte* latent_rows,
                                  int64_t latent_stride, int64_t count, int64_t head, int64_t value_panel) {
  MultiplyArgs args;
  args.rows = count;
  args.segments[0] = {latent_rows, weights.values(head, value_panel), latent_stride, weights.padded_rank()};
  args.c = product_;
  args.c_stride = kStride;
  weights.kernels().multiply(args);
  return args.c;
}

void ChunkProjector::reserve(const FlashShape& shape, const MlaDims& dims, int64_t keys) {
  const int64_t panels = ceil_div(keys, kPanelColumns);
  product_.reserve(dims);
  keys_ = key_buffer_.reserve<std::byte>(panels * shape.key_panel_bytes(0));
  values_ = value_buffer_.reserve<std::byte>(panels * kPanelColumns * shape.padded_v_columns() *
                                             shape.kernels->operand_bytes);
  finite_ = finite_buffer_.reserve<bool>(panels);
}

KeyChunk ChunkProjector::project(const FlashShape& shape, const PackedWeights& weights, const MlaDims& dims,
                                 DType working_dtype, const LatentStore& store, const RequestGroup& group,
                                 int64_t head, int64_t key_begin, int64_t key_end) {
  const KernelTable& kernels = *shape.kernels;
  reserve(shape, dims, key_end - key_begin);
  const int64_t panels = ceil_div(key_end - key_begin, kPanelColumns);
  const int64_t key_panel_bytes = shape.key_panel_bytes(0);
  const int64_t block_bytes = kPanelColumns * kPanelColumns * kernels.operand_bytes;
  KeyChunk chunk;
  chunk.key_begin = key_begin;
  chunk.key_end = key_end;
  chunk.value_panel_bytes = panels * block_bytes;
  chunk.keys[0] = keys_;
  chunk.keys[1] = store.rope_panel(group.key_begin + key_begin);
  chunk.values = values_;
  chunk.values_finite = finite_;
  const int64_t used_bytes = dims.qk_nope_head_dim * kPanelColumns * kernels.operand_bytes;
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t key = key_begin + panel * kPanelColumns;
    const int64_t store_key = group.key_begin + key;
    const int64_t count = std::min(kPanelColumns, key_end - key);
    const float* product = product_.keys(weights, dims, store.panel(store_key), count, head);
    std::byte* key_panel = keys_ + panel * key_panel_bytes;
    kernels.pack_product(product, UpProjection::kStride, dims.qk_nope_head_dim, working_dtype, key_panel);
    std::memset(key_panel + used_bytes, 0, static_cast<size_t>(key_panel_bytes - used_bytes));

    // Keys the panel lacks must have values of 0; the store has latents of 0 for them.
    const int64_t rows = round_up(count, kValueRows);
    const int64_t packed_bytes = rows * kPanelColumns * kernels.operand_bytes;
    finite_[panel] = true;
    for (int64_t v = 0; v < shape.padded_v_columns() / kPanelColumns; ++v) {
      product = product_.values(weights, store.rows(store_key), store.row_stride(), rows, head, v);
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
