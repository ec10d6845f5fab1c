#include "backend/cpu/up_projection.h"

#include <algorithm>
#include <cstring>

namespace mlaprefill::cpu {
namespace {

constexpr int64_t kValueRows = 16;

}  // namespace

const float* UpProjection::keys(const PackedWeights& weights, const MlaDims& dims,
                                const std::byte* latent_panel, int64_t count, int64_t head) {
  MultiplyArgs args;
  args.columns = count;
  args.rows = dims.qk_nope_head_dim;
  args.segments[0] = {weights.keys(head), latent_panel, weights.key_stride(), weights.padded_rank()};
  args.c = buffer_.reserve<float>(args.rows * kStride);
  args.c_stride = kStride;
  weights.kernels().multiply(args);
  return args.c;
}

const float* UpProjection::values(const PackedWeights& weights, const std::byte* latent_rows,
                                  int64_t latent_stride, int64_t count, int64_t head, int64_t value_panel) {
  MultiplyArgs args;
  args.rows = count;
  args.segments[0] = {latent_rows, weights.values(head, value_panel), latent_stride, weights.padded_rank()};
  args.c = buffer_.reserve<float>(kPanelColumns * kStride);
  args.c_stride = kStride;
  weights.kernels().multiply(args);
  return args.c;
}

KeyChunk ChunkProjector::project(const FlashShape& shape, const PackedWeights& weights, const MlaDims& dims,
                                 DType working_dtype, const LatentStore& store, const RequestGroup& group,
                                 int64_t head, int64_t key_begin, int64_t key_end) {
  const KernelTable& kernels = *shape.kernels;
  const int64_t panels = round_up(key_end - key_begin, kPanelColumns) / kPanelColumns;
  const int64_t key_panel_bytes = shape.key_panel_bytes(0);
  const int64_t block_bytes = kPanelColumns * kPanelColumns * kernels.operand_bytes;
  KeyChunk chunk;
  chunk.key_begin = key_begin;
  chunk.key_end = key_end;
  chunk.value_panel_bytes = panels * block_bytes;
  auto* keys = key_buffer_.reserve<std::byte>(panels * key_panel_bytes);
  auto* values =
      value_buffer_.reserve<std::byte>(shape.padded_v_columns() / kPanelColumns * chunk.value_panel_bytes);
  auto* finite = finite_buffer_.reserve<bool>(panels);
  chunk.keys[0] = keys;
  chunk.keys[1] = store.rope_panel(group.key_begin + key_begin);
  chunk.values = values;
  chunk.values_finite = finite;
  const int64_t used_bytes = dims.qk_nope_head_dim * kPanelColumns * kernels.operand_bytes;
  for (int64_t panel = 0; panel < panels; ++panel) {
    const int64_t key = key_begin + panel * kPanelColumns;
    const int64_t store_key = group.key_begin + key;
    const int64_t count = std::min(kPanelColumns, key_end - key);
    const float* product = product_.keys(weights, dims, store.panel(store_key), count, head);
    std::byte* key_panel = keys + panel * key_panel_bytes;
    kernels.pack_product(product, UpProjection::kStride, dims.qk_nope_head_dim, working_dtype, key_panel);
    std::memset(key_panel + used_bytes, 0, static_cast<size_t>(key_panel_bytes - used_bytes));

    // Keys the panel lacks must have values of 0; the store has latents of 0 for them.
    const int64_t rows = round_up(count, kValueRows);
    const int64_t packed_bytes = rows * kPanelColumns * kernels.operand_bytes;
    finite[panel] = true;
    for (int64_t v = 0; v < shape.padded_v_columns() / kPanelColumns; ++v) {
      product = product_.values(weights, store.rows(store_key), store.row_stride(), rows, head, v);
      std::byte* value_panel = values + v * chunk.value_panel_bytes + panel * block_bytes;
      const bool all_finite =
          kernels.pack_product(product, UpProjection::kStride, rows, working_dtype, value_panel);
      std::memset(value_panel + packed_bytes, 0, static_cast<size_t>(block_bytes - packed_bytes));
      finite[panel] = finite[panel] && all_finite;
    }
  }
  return chunk;
}

}  // namespace mlaprefill::cpu
