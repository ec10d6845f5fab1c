#include "backend/sm90/attention_call.h"

#include <numbers>

#include "backend/sm90/metadata.h"
#include "core/error.h"
#include "core/tensor_access.h"

namespace mlaprefill::sm90 {
namespace {

constexpr int64_t kRopeDim = 64;
constexpr int32_t kQueryBoxRows = kRowsPerWarpgroup;

/// The rope part of a key: its own tensor, or the last columns of every head's key.
ConstTensor rope_of(const AttentionArgs& args) {
  if (!args.k_rope.present()) return slice_last(args.k, args.k.shape[2] - kRopeDim, kRopeDim);
  const ConstTensor& rope = args.k_rope;
  return ConstTensor(rope.data, rope.dtype, {rope.shape[0], 1, kRopeDim}, {rope.stride[0], kRopeDim, 1});
}

ConstTensor nope_of(const AttentionArgs& args) {
  if (args.k_rope.present()) return args.k;
  return slice_last(args.k, 0, args.k.shape[2] - kRopeDim);
}

Status check_pitch(const char* where, const ConstTensor& tensor, int64_t element_bytes) {
  constexpr int64_t kPitchBytes = 16;
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address % kPitchBytes != 0) {
    return error(StatusCode::kUnsupported, "{}: data must be aligned to 16 bytes, got address {:#x}", where,
                 address);
  }
  for (size_t i = 0; i < 2; ++i) {
    if (tensor.shape[i] > 1 && tensor.stride[i] * element_bytes % kPitchBytes != 0) {
      return error(StatusCode::kUnsupported, "{}: stride[{}] must be a multiple of {} elements, got {}",
                   where, i, kPitchBytes / element_bytes, tensor.stride[i]);
    }
  }
  return {};
}

/// A map of a tensor without rows is never read, but must be well formed: it stands on the metadata.
Status encode(const char* where, const ConstTensor& tensor, TensorMapEncoder encoder, Element element,
              int32_t box_rows, const void* metadata, CUtensorMap* map) {
  MLAPREFILL_RETURN_IF_ERROR(check_pitch(where, tensor, size_bytes(tensor.dtype)));
  TensorMapSource source;
  source.data = tensor.data;
  source.columns = tensor.shape[2];
  source.heads = tensor.shape[1];
  source.row_stride = tensor.shape[0] > 1 ? tensor.stride[0] : tensor.shape[1] * tensor.shape[2];
  source.head_stride = tensor.stride[1];
  if (tensor.shape[0] == 0) {
    source.data = metadata;
    source.row_stride = source.columns * source.heads;
    source.head_stride = source.columns;
  }
  if (encode_ragged(encoder, source, element, box_rows, map)) return {};
  return error(StatusCode::kUnsupported, "{}: strides must suit a tensor map, got {} and {}", where,
               tensor.stride[0], tensor.stride[1]);
}

TensorRows rows_of(const ConstTensor& tensor) {
  return {static_cast<const uint16_t*>(tensor.data), tensor.stride[0], tensor.stride[1]};
}

/// Row pitch of the state's [heads, rows] arrays: of a bounded plan that of every plan of its family.
int64_t state_rows(const AttentionArgs& args) {
  const bool bounded = args.plan != nullptr && args.plan->options.bounds.has_value();
  return bounded ? args.plan->options.bounds->max_query_rows : args.q.shape[0];
}

Status check_served(const AttentionArgs& args) {
  const int64_t rope_dim = args.k_rope.present() ? args.k_rope.shape[1] : kRopeDim;
  const auto reasons = reasons_against_head_dims(args.q.shape[2], rope_dim, args.v.shape[2]);
  if (!reasons.empty()) return Status(StatusCode::kUnsupported, reasons.front());
  if (args.q.dtype != DType::kBF16 && args.q.dtype != DType::kF16) {
    return error(StatusCode::kUnsupported, "q: dtype must be bf16 or f16 on this backend, got {}",
                 to_string(args.q.dtype));
  }
  if (!(args.softmax_scale > 0)) {
    return error(StatusCode::kUnsupported, "softmax_scale: must be > 0 on this backend, got {}",
                 args.softmax_scale);
  }
  return args.out.dtype == DType::kF32 ? check_pitch("out", args.out, size_bytes(args.out.dtype)) : Status();
}

}  // namespace

std::vector<std::string> reasons_against_head_dims(int64_t qk_dim, int64_t rope_dim, int64_t v_dim) {
  const bool served =
      rope_dim == kRopeDim && ((qk_dim == 192 && v_dim == 128) || (qk_dim == 256 && v_dim == 256));
  if (served) return {};
  return {
      fmt::format("head dims: must be (nope, rope, v) = (128, 64, 128) or (192, 64, 256), got ({}, {}, {})",
                  qk_dim - rope_dim, rope_dim, v_dim)};
}

Status make_attention_call(const AttentionArgs& args, TensorMapEncoder encoder,
                           const DeviceSchedule& schedule, AttentionCall& call) {
  const void* metadata = schedule.metadata;
  MLAPREFILL_RETURN_IF_ERROR(check_served(args));
  call.dims = args.q.shape[2] == 192 ? KernelDims::k192x128 : KernelDims::k256x256;
  call.element = args.q.dtype == DType::kBF16 ? Element::kBF16 : Element::kF16;
  AttentionParams& params = call.params;
  const int32_t key_box_rows = key_tile_of(call.dims) / 2;
  MLAPREFILL_RETURN_IF_ERROR(
      encode("q", args.q, encoder, call.element, kQueryBoxRows, metadata, &params.q_map));
  MLAPREFILL_RETURN_IF_ERROR(
      encode("k", nope_of(args), encoder, call.element, key_box_rows, metadata, &params.k_nope_map));
  MLAPREFILL_RETURN_IF_ERROR(
      encode("k_rope", rope_of(args), encoder, call.element, key_box_rows, metadata, &params.k_rope_map));
  MLAPREFILL_RETURN_IF_ERROR(
      encode("v", args.v, encoder, call.element, key_box_rows, metadata, &params.v_map));
  params.out_is_f32 = args.out.dtype == DType::kF32;
  if (!params.out_is_f32) {
    MLAPREFILL_RETURN_IF_ERROR(
        encode("out", args.out, encoder, call.element, kStoreRows, metadata, &params.out_map));
  }

  params.q = rows_of(args.q);
  params.k_nope = rows_of(nope_of(args));
  params.k_rope = rows_of(rope_of(args));
  params.v = rows_of(args.v);

  auto* base = static_cast<std::byte*>(schedule.metadata);
  auto* record = reinterpret_cast<PassRecord*>(base + pass_record_offset_bytes(args.pass));
  params.entries = reinterpret_cast<const AttentionEntry*>(
      base + entries_offset_bytes(schedule.passes, schedule.max_kv_splits));
  params.sections = record->sections.data();
  params.item_counter = &record->item_counter;
  params.arrivals = reinterpret_cast<uint32_t*>(base + pass_record_offset_bytes(schedule.passes));
  params.partials = static_cast<float4*>(schedule.partials);

  params.out = args.out.data;
  params.out_row_stride = args.out.stride[0];
  params.out_head_stride = args.out.stride[1];
  params.lse = args.lse.data;
  params.lse_row_stride = args.lse.token_stride;
  params.lse_head_stride = args.lse.head_stride;
  params.lse_unit = args.lse.base == LseBase::kLog2 ? std::numbers::log2e_v<float> : 1.0f;
  params.state_out = args.state.out;
  params.state_max = args.state.max;
  params.state_sum = args.state.sum;
  params.state_rows = state_rows(args);

  params.num_heads = static_cast<int32_t>(args.q.shape[1]);
  params.kv_heads_per_q_head = static_cast<float>(args.k.shape[1]) / static_cast<float>(args.q.shape[1]);
  params.rope_per_head = !args.k_rope.present();
  params.scale = static_cast<float>(args.softmax_scale);
  return {};
}

}  // namespace mlaprefill::sm90
