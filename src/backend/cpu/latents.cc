#include "backend/cpu/latents.h"

#include <algorithm>
#include <cstring>

#include "backend/latent_cache.h"
#include "core/float_formats.h"

namespace mlaprefill::cpu {
namespace {

// Requests of at most this many keys share panels, up to the second number of keys.
constexpr int64_t kShortRequestKeys = 64;
constexpr int64_t kGroupKeys = 256;

ConstTensor row_block(const ConstTensor& tensor, int64_t row, int64_t column, int64_t rows) {
  ConstTensor block = tensor;
  block.data = static_cast<const std::byte*>(tensor.data) +
               (row * tensor.stride[0] + column) * size_bytes(tensor.dtype);
  block.shape[0] = rows;
  return block;
}

}  // namespace

LatentSource::LatentSource(const Plan& plan, const KvCache& cache, const ConstTensor& kv_latent,
                           const ConstTensor& k_rope)
    : plan_(plan), cache_(cache), kv_latent_(kv_latent), k_rope_(k_rope) {
  if (cache.data.dtype != DType::kF8E4M3) return;
  for (int code = 0; code < 256; ++code) {
    f8_values_[code] = float_from_f8_e4m3(static_cast<uint8_t>(code)) * cache.scale;
  }
}

void LatentSource::read(int64_t request, int64_t key_begin, int64_t key_end, Target latents,
                        Target rope) const {
  const auto r = static_cast<size_t>(request);
  const int64_t context = plan_.context_lens[r];
  int64_t key = key_begin;
  while (key < std::min(key_end, context)) {
    const int64_t offset = key % plan_.block_size;
    const int64_t rows = std::min({plan_.block_size - offset, context - key, key_end - key});
    const auto index = static_cast<size_t>(plan_.block_begin[r] + key / plan_.block_size);
    read_cached(plan_.blocks[index], offset, rows, latents, rope);
    key += rows;
  }
  if (key < key_end) {
    read_new(plan_.query_start_loc[r] + key - context, key_end - key, latents, rope);
  }
}

void LatentSource::convert(const ConstTensor& rows, int64_t columns, Target& target) const {
  ConvertArgs args;
  args.source = rows.data;
  args.source_dtype = rows.dtype;
  args.source_stride = rows.stride[0];
  args.rows = rows.shape[0];
  args.columns = columns;
  args.f8_values = f8_values_;
  args.rounding = plan_.options.working_dtype;
  args.target = target.data;
  args.target_stride = target.stride;
  args.padded_columns = target.padded_columns;
  target.kernels->convert_rows(args);
  target.data += args.rows * target.stride * target.kernels->operand_bytes;
}

void LatentSource::read_cached(int64_t block, int64_t offset, int64_t rows, Target& latents,
                               Target& rope) const {
  if (cache_.data.dtype == DType::kU8) return read_packed(block, offset, rows, latents, rope);
  ConstTensor page = cache_.data;
  page.data = static_cast<const std::byte*>(page.data) + block * page.stride[0] * size_bytes(page.dtype);
  page.stride[0] = page.stride[1];
  convert(row_block(page, offset, 0, rows), plan_.dims.kv_lora_rank, latents);
  convert(row_block(page, offset, plan_.dims.kv_lora_rank, rows), plan_.dims.qk_rope_head_dim, rope);
}

void LatentSource::read_packed(int64_t block, int64_t offset, int64_t rows, Target& latents,
                               Target& rope) const {
  constexpr int64_t kColumns = PackedRow::kLatents + PackedRow::kRope;
  float row[kColumns];
  for (int64_t i = 0; i < rows; ++i) {
    read_latent_row(cache_, block, offset + i, kColumns, row);
    convert(ConstTensor(row, DType::kF32, {1, PackedRow::kLatents}), PackedRow::kLatents, latents);
    convert(ConstTensor(row + PackedRow::kLatents, DType::kF32, {1, PackedRow::kRope}), PackedRow::kRope,
            rope);
  }
}

void LatentSource::read_new(int64_t row, int64_t rows, Target& latents, Target& rope) const {
  convert(row_block(kv_latent_, row, 0, rows), plan_.dims.kv_lora_rank, latents);
  convert(row_block(k_rope_, row, 0, rows), plan_.dims.qk_rope_head_dim, rope);
}

void group_requests(const Plan& plan, std::vector<RequestGroup>& groups) {
  groups.clear();
  int64_t store_keys = 0;
  bool open = false;  // the last group may take another short request
  for (int64_t request = 0; request < plan.num_requests; ++request) {
    const auto r = static_cast<size_t>(request);
    const int64_t queries = plan.query_lens[r];
    if (queries == 0) continue;
    const int64_t keys = plan.context_lens[r] + queries;
    const int64_t row = plan.query_start_loc[r];
    const bool is_short = keys <= kShortRequestKeys && !plan.options.invariant;
    if (open && is_short) {
      RequestGroup& last = groups.back();
      if (last.query_row + last.queries == row && last.keys + keys <= kGroupKeys) {
        last.end_request = request + 1;
        last.keys += keys;
        last.queries += queries;
        continue;
      }
    }
    if (!groups.empty()) store_keys += round_up(groups.back().keys, kPanelColumns);
    groups.push_back({request, request + 1, store_keys, keys, row, queries});
    open = is_short;
  }
}

void LatentStore::prepare(const PackedWeights& weights, const KernelTable& attention_kernels,
                          const MlaDims& dims, int64_t keys) {
  kernels_ = &weights.kernels();
  attention_kernels_ = &attention_kernels;
  operand_bytes_ = kernels_->operand_bytes;
  padded_rank_ = weights.padded_rank();
  row_stride_ = cpu::row_stride(padded_rank_, operand_bytes_);
  rope_columns_ = dims.qk_rope_head_dim;
  padded_rope_ = round_up(dims.qk_rope_head_dim, attention_kernels.depth_multiple);
  rope_panel_bytes_ = padded_rope_ * kPanelColumns * attention_kernels.operand_bytes;
  const int64_t panels = keys / kPanelColumns;
  rows_ = row_buffer_.reserve<std::byte>(keys * row_stride_ * operand_bytes_);
  rope_panels_ = rope_panel_buffer_.reserve<std::byte>(panels * rope_panel_bytes_);
  rope_rows_ = rope_row_buffer_.reserve<std::byte>(keys * padded_rope_ * attention_kernels.operand_bytes);
}

void LatentStore::fill(const LatentSource& source, const Plan& plan, const RequestGroup& group, int64_t key) {
  const int64_t end = std::min(key + kPanelColumns, group.key_begin + group.keys);
  std::byte* rope_rows = rope_rows_ + key * padded_rope_ * attention_kernels_->operand_bytes;
  LatentSource::Target latents{kernels_, rows_ + key * row_stride_ * operand_bytes_, row_stride_,
                               padded_rank_};
  LatentSource::Target rope{attention_kernels_, rope_rows, padded_rope_, padded_rope_};
  int64_t request_begin = group.key_begin;
  for (int64_t request = group.first_request; request < group.end_request; ++request) {
    const auto r = static_cast<size_t>(request);
    if (plan.query_lens[r] == 0) continue;
    const int64_t request_end = request_begin + plan.context_lens[r] + plan.query_lens[r];
    const int64_t from = std::max(key, request_begin);
    const int64_t to = std::min(end, request_end);
    if (from < to) {
      source.read(request, from - request_begin, to - request_begin, latents, rope);
      latents.data += (to - from) * row_stride_ * operand_bytes_;
      rope.data += (to - from) * padded_rope_ * attention_kernels_->operand_bytes;
    }
    request_begin = request_end;
  }
  const int64_t count = end - key;
  std::memset(latents.data, 0, static_cast<size_t>((kPanelColumns - count) * row_stride_ * operand_bytes_));
  attention_kernels_->pack_transposed(rope_rows, padded_rope_, count, padded_rope_,
                                      rope_panels_ + key / kPanelColumns * rope_panel_bytes_);
}

}  // namespace mlaprefill::cpu
