// Validation of every backend call. Messages read `where: requirement, got value`.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/check_tensor.h"
#include "backend/internal.h"
#include "backend/latent_cache.h"
#include "backend/spans.h"
#include "core/error.h"
#include "core/tensor_access.h"

namespace mlaprefill {
namespace {

constexpr int64_t kMaxHeads = 256;
constexpr int64_t kMaxQkDim = 256 + 128;
constexpr int64_t kMaxVDim = 256;
constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();

Status check_head_dim(const char* where, int64_t dim, int64_t limit) {
  if (dim < 16 || dim % 16 != 0) {
    return error(StatusCode::kUnsupported, "{}: head dim must be a positive multiple of 16, got {}", where,
                 dim);
  }
  if (dim > limit) {
    return error(StatusCode::kLimitExceeded, "{}: head dim must be <= {}, got {}", where, limit, dim);
  }
  return {};
}

Status check_same_dtype(const char* where, DType dtype, const char* other_name, DType other) {
  if (dtype == other) return {};
  return error(StatusCode::kUnsupported, "{}: dtype must be that of {} ({}), got {}", where, other_name,
               to_string(other), to_string(dtype));
}

Status check_cache(const KvCache& cache, const MlaDims& dims) {
  const Tensor& data = cache.data;
  const int64_t width = data.dtype == DType::kU8 ? PackedRow::kBytes : dims.latent_dim();
  if (data.dtype == DType::kU8) {
    if (dims.kv_lora_rank != PackedRow::kLatents || dims.qk_rope_head_dim != PackedRow::kRope) {
      return error(StatusCode::kUnsupported,
                   "cache: packed rows hold kv_lora_rank 512 and rope 64, got {} and {}", dims.kv_lora_rank,
                   dims.qk_rope_head_dim);
    }
  } else if (data.dtype != DType::kF8E4M3 && !is_working_dtype(data.dtype)) {
    return error(StatusCode::kUnsupported, "cache: dtype must be bf16, f16, f32, f8_e4m3 or u8, got {}",
                 to_string(data.dtype));
  }
  MLAPREFILL_RETURN_IF_ERROR(check_output("cache", data, {-1, -1, width}));
  if (data.dtype == DType::kU8 && (data.stride[0] % 4 != 0 || data.stride[1] % 4 != 0)) {
    return error(StatusCode::kUnsupported, "cache: strides of packed rows must be multiples of 4, got {}, {}",
                 data.stride[0], data.stride[1]);
  }
  if (data.dtype == DType::kF8E4M3 && !(std::isfinite(cache.scale) && cache.scale > 0.0f)) {
    return invalid("cache.scale: must be finite and > 0, got {}", cache.scale);
  }
  return {};
}

Status check_new_latents(const ConstTensor& kv_latent, const ConstTensor& k_rope, int64_t rows,
                         int64_t kv_lora_rank, int64_t rope) {
  MLAPREFILL_RETURN_IF_ERROR(check_tensor("kv_latent", kv_latent, {rows, kv_lora_rank}));
  MLAPREFILL_RETURN_IF_ERROR(check_tensor("k_rope", k_rope, {rows, rope}));
  MLAPREFILL_RETURN_IF_ERROR(check_working_dtype("kv_latent", kv_latent.dtype));
  return check_same_dtype("k_rope", k_rope.dtype, "kv_latent", kv_latent.dtype);
}

// The plan's cached tokens can be read from the cache.
Status check_context(const Plan& plan, const KvCache& cache) {
  if (plan.longest_context_tokens == 0) return {};
  if (plan.block_begin.empty()) {
    return invalid("block_table: must be given to make_plan when a request has context, got one of {} tokens",
                   plan.longest_context_tokens);
  }
  MLAPREFILL_RETURN_IF_ERROR(check_cache(cache, plan.dims));
  if (cache.data.shape[1] != plan.block_size) {
    return invalid("cache: must have block_size {} of the plan, got {}", plan.block_size,
                   cache.data.shape[1]);
  }
  if (plan.highest_block >= cache.data.shape[0]) {
    return error(StatusCode::kOutOfRange, "block_table: block ids must be < the cache's {} blocks, got {}",
                 cache.data.shape[0], plan.highest_block);
  }
  return {};
}

Status check_plan(const Plan* plan, const LayerWeights* weights) {
  if (plan == nullptr) return invalid("plan: must not be null, got null");
  if (weights == nullptr) return invalid("weights: must not be null, got null");
  return {};
}

}  // namespace

Status validate(const AttentionArgs& args) {
  MLAPREFILL_RETURN_IF_ERROR(check_tensor("q", args.q, {-1, -1, -1}));
  MLAPREFILL_RETURN_IF_ERROR(check_tensor("k", args.k, {-1, -1, -1}));
  const int64_t q_rows = args.q.shape[0];
  const int64_t heads = args.q.shape[1];
  const int64_t k_rows = args.k.shape[0];
  const int64_t kv_heads = args.k.shape[1];
  if (heads < 1 || heads > kMaxHeads) {
    return error(StatusCode::kLimitExceeded, "q: heads must lie in 1..{}, got {}", kMaxHeads, heads);
  }
  if (kv_heads < 1 || heads % kv_heads != 0) {
    return invalid("k: heads must divide q's {} heads, got {}", heads, kv_heads);
  }
  MLAPREFILL_RETURN_IF_ERROR(check_head_dim("q", args.q.shape[2], kMaxQkDim));
  int64_t rope = 0;
  if (args.k_rope.present()) {
    MLAPREFILL_RETURN_IF_ERROR(check_tensor("k_rope", args.k_rope, {k_rows, -1}));
    rope = args.k_rope.shape[1];
    MLAPREFILL_RETURN_IF_ERROR(check_head_dim("k_rope", rope, 128));
  }
  MLAPREFILL_RETURN_IF_ERROR(check_head_dim("k", args.k.shape[2], kMaxQkDim));
  if (args.k.shape[2] + rope != args.q.shape[2]) {
    return invalid("k: head dim plus k_rope's {} must be q's {}, got {}", rope, args.q.shape[2],
                   args.k.shape[2]);
  }
  MLAPREFILL_RETURN_IF_ERROR(check_tensor("v", args.v, {k_rows, kv_heads, -1}));
  const int64_t v_dim = args.v.shape[2];
  MLAPREFILL_RETURN_IF_ERROR(check_head_dim("v", v_dim, kMaxVDim));
  MLAPREFILL_RETURN_IF_ERROR(check_working_dtype("q", args.q.dtype));
  MLAPREFILL_RETURN_IF_ERROR(check_same_dtype("k", args.k.dtype, "q", args.q.dtype));
  MLAPREFILL_RETURN_IF_ERROR(check_same_dtype("v", args.v.dtype, "q", args.q.dtype));
  if (args.k_rope.present()) {
    MLAPREFILL_RETURN_IF_ERROR(check_same_dtype("k_rope", args.k_rope.dtype, "q", args.q.dtype));
  }
  if (!std::isfinite(args.softmax_scale)) {
    return invalid("softmax_scale: must be finite, got {}", args.softmax_scale);
  }
  MLAPREFILL_RETURN_IF_ERROR(check_output("out", args.out, {q_rows, heads, v_dim}));
  MLAPREFILL_RETURN_IF_ERROR(check_output_dtype("out", args.out.dtype, "q", args.q.dtype));
  MLAPREFILL_RETURN_IF_ERROR(check_lse("lse", args.lse, heads, q_rows));
  MLAPREFILL_RETURN_IF_ERROR(check_spans(args.spans, q_rows, k_rows));
  const bool has_state = args.state.out != nullptr && args.state.max != nullptr && args.state.sum != nullptr;
  for (size_t i = 0; i < args.spans.size() && !has_state; ++i) {
    if (args.spans[i].resume || args.spans[i].store_state) {
      return invalid("state: must be given because spans[{}] {}, got null", i,
                     args.spans[i].resume ? "resumes" : "stores it");
    }
  }
  return {};
}

Status validate(const MergeArgs& args) {
  MLAPREFILL_RETURN_IF_ERROR(check_output("out", args.out, {-1, -1, -1}));
  MLAPREFILL_RETURN_IF_ERROR(check_working_dtype("out", args.out.dtype));
  const int64_t tokens = args.out.shape[0];
  const int64_t heads = args.out.shape[1];
  const int64_t dim = args.out.shape[2];
  MLAPREFILL_RETURN_IF_ERROR(check_lse("lse", args.lse, heads, tokens));
  for (size_t i = 0; i < args.partials.size(); ++i) {
    const PartialAttention& partial = args.partials[i];
    const std::string name = fmt::format("partials[{}]", i);
    MLAPREFILL_RETURN_IF_ERROR(check_tensor(name + ".out", partial.out, {tokens, heads, dim}));
    MLAPREFILL_RETURN_IF_ERROR(check_working_dtype(name + ".out", partial.out.dtype));
    if (partial.lse.data == nullptr && tokens * heads > 0) {
      return invalid("{}.lse: must not be null, got null", name);
    }
    if (tokens * heads > 0 && (partial.lse.head_stride < 0 || partial.lse.token_stride < 0)) {
      return invalid("{}.lse: strides must be >= 0, got {} and {}", name, partial.lse.head_stride,
                     partial.lse.token_stride);
    }
    const ConstTensor out = args.out;
    if (partial.out.data == out.data && num_elements(out) > 0 &&
        (partial.out.dtype != out.dtype || partial.out.stride != out.stride)) {
      return invalid("{}.out: must have out's dtype and strides to be merged in place, got {} beside {}",
                     name, to_string(partial.out.dtype), to_string(out.dtype));
    }
    if (partial.lse.data == args.lse.data && args.lse.data != nullptr &&
        (partial.lse.head_stride != args.lse.head_stride ||
         partial.lse.token_stride != args.lse.token_stride)) {
      return invalid("{}.lse: must have lse's strides to be merged in place, got {}, {} beside {}, {}", name,
                     partial.lse.head_stride, partial.lse.token_stride, args.lse.head_stride,
                     args.lse.token_stride);
    }
  }
  return {};
}

Status validate(const AppendArgs& args) {
  MLAPREFILL_RETURN_IF_ERROR(check_tensor("kv_latent", args.kv_latent, {-1, -1}));
  MLAPREFILL_RETURN_IF_ERROR(check_tensor("k_rope", args.k_rope, {-1, -1}));
  const int64_t rows = args.kv_latent.shape[0];
  MLAPREFILL_RETURN_IF_ERROR(
      check_new_latents(args.kv_latent, args.k_rope, rows, args.kv_latent.shape[1], args.k_rope.shape[1]));
  if (args.slot_mapping == nullptr && rows > 0) return invalid("slot_mapping: must not be null, got null");
  MlaDims dims{.num_heads = 1, .qk_nope_head_dim = 16, .v_head_dim = 16};
  dims.kv_lora_rank = static_cast<int32_t>(std::min<int64_t>(args.kv_latent.shape[1], kMaxExtent));
  dims.qk_rope_head_dim = static_cast<int32_t>(std::min<int64_t>(args.k_rope.shape[1], kMaxExtent));
  MLAPREFILL_RETURN_IF_ERROR(validate(dims));
  return check_cache(args.cache, dims);
}

Status validate_host_slots(const AppendArgs& args) {
  const int64_t slots = args.cache.data.shape[0] * args.cache.data.shape[1];
  for (int64_t i = 0; i < args.kv_latent.shape[0]; ++i) {
    if (args.slot_mapping[i] < -1 || args.slot_mapping[i] >= slots) {
      return error(StatusCode::kOutOfRange, "slot_mapping[{}]: must lie in -1 .. {}, got {}", i, slots - 1,
                   args.slot_mapping[i]);
    }
  }
  return {};
}

Status validate(const ExpandArgs& args) {
  MLAPREFILL_RETURN_IF_ERROR(check_plan(args.plan, args.weights));
  const Plan& plan = *args.plan;
  const MlaDims& dims = plan.dims;
  const auto num_passes = static_cast<int64_t>(plan.passes.size());
  if (args.pass < 0 || args.pass >= num_passes) {
    return error(StatusCode::kOutOfRange, "pass: must lie in 0 .. {}, got {}", num_passes - 1, args.pass);
  }
  MLAPREFILL_RETURN_IF_ERROR(check_new_latents(args.kv_latent, args.k_rope, plan.num_query_rows,
                                               dims.kv_lora_rank, dims.qk_rope_head_dim));
  MLAPREFILL_RETURN_IF_ERROR(check_context(plan, args.cache));
  const int64_t rows = plan.passes[static_cast<size_t>(args.pass)].rows;
  MLAPREFILL_RETURN_IF_ERROR(check_output("latent", args.latent, {-1, dims.latent_dim()}));
  MLAPREFILL_RETURN_IF_ERROR(
      check_output("expanded", args.expanded, {-1, dims.num_heads, dims.expanded_head_dim()}));
  for (const auto& [name, tensor] : {std::pair{"latent", args.latent}, {"expanded", args.expanded}}) {
    if (tensor.shape[0] < rows) {
      return error(StatusCode::kWorkspaceTooSmall, "{}: must have the pass's {} rows, got {}", name, rows,
                   tensor.shape[0]);
    }
  }
  const DType working = plan.options.working_dtype;
  MLAPREFILL_RETURN_IF_ERROR(check_same_dtype("latent", args.latent.dtype, "the plan's workspace", working));
  return check_same_dtype("expanded", args.expanded.dtype, "the plan's workspace", working);
}

Status validate(const FusedLayerArgs& args) {
  MLAPREFILL_RETURN_IF_ERROR(check_plan(args.plan, args.weights));
  const Plan& plan = *args.plan;
  const MlaDims& dims = plan.dims;
  const LayerTensors& tensors = args.tensors;
  const int64_t rows = plan.num_query_rows;
  MLAPREFILL_RETURN_IF_ERROR(check_tensor("q", tensors.q, {rows, dims.num_heads, dims.qk_head_dim()}));
  MLAPREFILL_RETURN_IF_ERROR(check_working_dtype("q", tensors.q.dtype));
  MLAPREFILL_RETURN_IF_ERROR(
      check_new_latents(tensors.kv_latent, tensors.k_rope, rows, dims.kv_lora_rank, dims.qk_rope_head_dim));
  MLAPREFILL_RETURN_IF_ERROR(check_output("out", tensors.out, {rows, dims.num_heads, dims.v_head_dim}));
  MLAPREFILL_RETURN_IF_ERROR(check_output_dtype("out", tensors.out.dtype, "q", tensors.q.dtype));
  MLAPREFILL_RETURN_IF_ERROR(check_lse("lse", tensors.lse, dims.num_heads, rows));
  return check_context(plan, tensors.cache);
}

Status validate_kv_b_proj(const MlaDims& dims, const ConstTensor& kv_b_proj) {
  MLAPREFILL_RETURN_IF_ERROR(validate(dims));
  MLAPREFILL_RETURN_IF_ERROR(
      check_tensor("kv_b_proj", kv_b_proj, {dims.num_heads * dims.expanded_head_dim(), dims.kv_lora_rank}));
  return check_working_dtype("kv_b_proj", kv_b_proj.dtype);
}

std::vector<std::string> reasons_against(const SupportQuery& query) {
  std::vector<std::string> reasons;
  const auto note = [&reasons](const Status& status) {
    if (!status.ok()) reasons.push_back(status.message());
  };
  note(validate(query.dims));
  note(check_working_dtype("query_dtype", query.query_dtype));
  note(check_output_dtype("output_dtype", query.output_dtype, "query_dtype", query.query_dtype));
  note(check_working_dtype("weight_dtype", query.weight_dtype));
  if (query.needs_context) {
    KvCache cache;
    const int64_t width =
        query.cache_dtype == DType::kU8 ? PackedRow::kBytes : std::max<int64_t>(query.dims.latent_dim(), 1);
    cache.data = Tensor(nullptr, query.cache_dtype, {0, 1, width});
    note(check_cache(cache, query.dims));
  }
  return reasons;
}

}  // namespace mlaprefill
