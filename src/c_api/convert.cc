#include "c_api/convert.h"

namespace mlaprefill::c_api {
namespace {

constexpr int64_t kNumDTypes = 7;
constexpr int64_t kNumModes = 4;

Status check_copyable(std::string_view where, int64_t count, const void* data) {
  if (count > 0 && data == nullptr) return invalid("{}: must not be NULL", where);
  return {};
}

}  // namespace

Status convert(std::string_view where, const mlaprefill_dims* from, MlaDims& to) {
  mlaprefill_dims c = MLAPREFILL_DIMS_INIT;
  MLAPREFILL_RETURN_IF_ERROR(read_struct(where, from, c));
  to = {.num_heads = c.num_heads,
        .kv_lora_rank = c.kv_lora_rank,
        .qk_nope_head_dim = c.qk_nope_head_dim,
        .qk_rope_head_dim = c.qk_rope_head_dim,
        .v_head_dim = c.v_head_dim,
        .softmax_scale = c.softmax_scale};
  return {};
}

Status convert(std::string_view where, const mlaprefill_batch* from, RaggedBatch& to) {
  mlaprefill_batch c = MLAPREFILL_BATCH_INIT;
  MLAPREFILL_RETURN_IF_ERROR(read_struct(where, from, c));
  if (c.num_requests < 0 || c.num_requests >= int64_t{1} << 31) {
    return invalid("{}.num_requests: must be in 0..2^31-1, got {}", where, c.num_requests);
  }
  MLAPREFILL_RETURN_IF_ERROR(require(c.query_start_loc, "query_start_loc"));
  MLAPREFILL_RETURN_IF_ERROR(check_copyable("context_lens", c.num_requests, c.context_lens));
  const auto requests = static_cast<size_t>(c.num_requests);
  to.query_start_loc = {c.query_start_loc, requests + 1};
  to.context_lens = {c.context_lens, requests};
  if (c.query_lens != nullptr) to.query_lens = {c.query_lens, requests};
  if (c.seq_lens != nullptr) to.seq_lens = {c.seq_lens, requests};
  to.block_table = {.data = c.block_table,
                    .rows = c.block_table_rows,
                    .cols = c.block_table_cols,
                    .row_stride = c.block_table_row_stride};
  to.block_size = c.block_size;
  to.num_cache_blocks = c.num_cache_blocks;
  return {};
}

Status convert(std::string_view where, const mlaprefill_device_properties* from, DeviceProperties& to) {
  mlaprefill_device_properties c = MLAPREFILL_DEVICE_PROPERTIES_INIT;
  if (from != nullptr) MLAPREFILL_RETURN_IF_ERROR(read_struct(where, from, c));
  to = {.num_processors = c.num_processors,
        .query_tile_tokens = c.query_tile_tokens,
        .key_tile_tokens = c.key_tile_tokens,
        .row_alignment_rows = c.row_alignment_rows};
  return {};
}

Status convert(std::string_view where, const mlaprefill_plan_bounds* from, PlanBounds& to) {
  mlaprefill_plan_bounds c = MLAPREFILL_PLAN_BOUNDS_INIT;
  MLAPREFILL_RETURN_IF_ERROR(read_struct(where, from, c));
  to = {.max_requests = c.max_requests,
        .max_query_rows = c.max_query_rows,
        .max_new_tokens_pass_rows = c.max_new_tokens_pass_rows,
        .max_passes = c.max_passes};
  return {};
}

Status convert(std::string_view where, const mlaprefill_plan_options* from, PlanOptions& to) {
  mlaprefill_plan_options c = MLAPREFILL_PLAN_OPTIONS_INIT;
  if (from != nullptr) MLAPREFILL_RETURN_IF_ERROR(read_struct(where, from, c));
  MLAPREFILL_RETURN_IF_ERROR(require_in_range(c.mode, kNumModes, "mode"));
  MLAPREFILL_RETURN_IF_ERROR(convert_dtype("working_dtype", c.working_dtype, to.working_dtype));
  to.mode = static_cast<PlanMode>(c.mode);
  to.workspace_tokens = c.workspace_tokens;
  to.strict = c.strict != 0;
  to.invariant = c.invariant != 0;
  to.max_requests = c.max_requests;
  to.max_query_tokens = c.max_query_tokens;
  to.max_context_tokens_per_request = c.max_context_tokens_per_request;
  if (c.bounds != nullptr) MLAPREFILL_RETURN_IF_ERROR(convert("bounds", c.bounds, to.bounds.emplace()));
  return {};
}

Status convert_dtype(std::string_view where, int32_t from, DType& to) {
  MLAPREFILL_RETURN_IF_ERROR(require_in_range(from, kNumDTypes, where));
  to = static_cast<DType>(from);
  return {};
}

Status convert(std::string_view where, const mlaprefill_tensor& from, Tensor& to) {
  if (from.rank < 0 || from.rank > 4) return invalid("{}.rank: must be in 0..4, got {}", where, from.rank);
  MLAPREFILL_RETURN_IF_ERROR(convert_dtype(where, from.dtype, to.dtype));
  to.data = from.data;
  to.rank = from.rank;
  std::copy_n(from.shape, 4, to.shape.begin());
  std::copy_n(from.stride, 4, to.stride.begin());
  return {};
}

Status convert(std::string_view where, const mlaprefill_tensor& from, ConstTensor& to) {
  Tensor view;
  MLAPREFILL_RETURN_IF_ERROR(convert(where, from, view));
  to = view;
  return {};
}

Status convert(std::string_view where, const mlaprefill_lse& from, LseView& to) {
  if (from.base != MLAPREFILL_LSE_NATURAL && from.base != MLAPREFILL_LSE_LOG2) {
    return invalid("{}.base: must be 0 (natural) or 1 (log2), got {}", where, from.base);
  }
  to = {.data = from.data,
        .head_stride = from.head_stride,
        .token_stride = from.token_stride,
        .base = static_cast<LseBase>(from.base)};
  return {};
}

Status convert(std::string_view where, const mlaprefill_kv_cache& from, KvCache& to) {
  to.scale = from.scale;
  return convert(where, from.data, to.data);
}

std::string join_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    if (!text.empty()) text += '\n';
    text += line;
  }
  return text;
}

}  // namespace mlaprefill::c_api
