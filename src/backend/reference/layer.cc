#include <algorithm>
#include <cstring>

#include "backend/latent_cache.h"
#include "backend/reference/online_softmax.h"
#include "backend/reference/operations.h"
#include "core/float_formats.h"
#include "core/tensor_access.h"

namespace mlaprefill::reference {
namespace {

// Element `d` of a cached row, dequantised exactly.
double cached_value(const KvCache& cache, const void* row, int64_t d) {
  switch (cache.data.dtype) {
    case DType::kU8: {
      const auto* bytes = static_cast<const uint8_t*>(row);
      if (d >= PackedRow::kLatents) {
        return load_float(bytes + PackedRow::kRopeOffsetBytes, DType::kBF16, d - PackedRow::kLatents);
      }
      float scale = 0.0f;
      std::memcpy(&scale, bytes + PackedRow::kScalesOffsetBytes + 4 * (d / PackedRow::kGroup), sizeof(scale));
      return double{scale} * double{float_from_f8_e4m3(bytes[d])};
    }
    case DType::kF8E4M3:
      return double{cache.scale} * double{load_float(row, DType::kF8E4M3, d)};
    default:
      return load_float(row, cache.data.dtype, d);
  }
}

void append_cached(const Plan& plan, int32_t request, int64_t position, const KvCache& cache,
                   std::vector<double>& latents) {
  const int64_t first = plan.block_begin[static_cast<size_t>(request)];
  const int64_t block = plan.blocks[static_cast<size_t>(first + position / plan.block_size)];
  const void* row = element_address(cache.data, block, position % plan.block_size);
  for (int64_t d = 0; d < plan.dims.latent_dim(); ++d) latents.push_back(cached_value(cache, row, d));
}

void append_new(const Plan& plan, int64_t row, const ConstTensor& kv_latent, const ConstTensor& k_rope,
                std::vector<double>& latents) {
  const void* latent = element_address(kv_latent, row);
  for (int64_t d = 0; d < plan.dims.kv_lora_rank; ++d) {
    latents.push_back(load_float(latent, kv_latent.dtype, d));
  }
  const void* rope = element_address(k_rope, row);
  for (int64_t d = 0; d < plan.dims.qk_rope_head_dim; ++d) {
    latents.push_back(load_float(rope, k_rope.dtype, d));
  }
}

HeadKeys expand_head(const Weights& weights, int64_t head, const std::vector<double>& latents) {
  const MlaDims& dims = weights.dims;
  HeadKeys keys;
  keys.qk_dim = dims.qk_head_dim();
  keys.v_dim = dims.v_head_dim;
  for (auto row = latents.begin(); row != latents.end(); row += dims.latent_dim()) {
    const std::vector<double> expanded = up_project(weights, head, &*row);
    keys.k.insert(keys.k.end(), expanded.begin(), expanded.begin() + dims.qk_nope_head_dim);
    keys.k.insert(keys.k.end(), row + dims.kv_lora_rank, row + dims.latent_dim());
    keys.v.insert(keys.v.end(), expanded.begin() + dims.qk_nope_head_dim, expanded.end());
  }
  return keys;
}

}  // namespace

Weights::Weights(const MlaDims& layer_dims, const ConstTensor& kv_b_proj) : dims(layer_dims) {
  const int64_t width = dims.expanded_head_dim();
  const int64_t rank = dims.kv_lora_rank;
  values.resize(static_cast<size_t>(dims.num_heads * rank * width));
  for (int64_t head = 0; head < dims.num_heads; ++head) {
    for (int64_t column = 0; column < width; ++column) {
      const void* row = element_address(kv_b_proj, head * width + column);
      for (int64_t r = 0; r < rank; ++r) {
        values[static_cast<size_t>((head * rank + r) * width + column)] = load_float(row, kv_b_proj.dtype, r);
      }
    }
  }
}

std::vector<double> gather_latents(const Plan& plan, int32_t request, int64_t key_begin, int64_t count,
                                   const ConstTensor& kv_latent, const ConstTensor& k_rope,
                                   const KvCache& cache) {
  const auto r = static_cast<size_t>(request);
  const int64_t context = plan.context_lens[r];
  std::vector<double> latents;
  latents.reserve(static_cast<size_t>(count * plan.dims.latent_dim()));
  for (int64_t position = key_begin; position < key_begin + count; ++position) {
    if (position < context) {
      append_cached(plan, request, position, cache, latents);
    } else {
      append_new(plan, plan.query_start_loc[r] + position - context, kv_latent, k_rope, latents);
    }
  }
  return latents;
}

std::vector<double> up_project(const Weights& weights, int64_t head, const double* latent) {
  const int64_t width = weights.dims.expanded_head_dim();
  const int64_t rank = weights.dims.kv_lora_rank;
  std::vector<double> expanded(static_cast<size_t>(width), 0.0);
  for (int64_t r = 0; r < rank; ++r) {
    const double* row = weights.values.data() + (head * rank + r) * width;
    for (int64_t d = 0; d < width; ++d) expanded[static_cast<size_t>(d)] += latent[r] * row[d];
  }
  return expanded;
}

void expand(const ExpandArgs& args, const Weights& weights) {
  const Plan& plan = *args.plan;
  const Pass& pass = plan.passes[static_cast<size_t>(args.pass)];
  const int64_t latent_dim = plan.dims.latent_dim();
  for (int64_t i = pass.span_begin; i < pass.span_end; ++i) {
    const Span& span = plan.spans[static_cast<size_t>(i)];
    const std::vector<double> latents = gather_latents(plan, span.request, span.key_begin, span.length(),
                                                       args.kv_latent, args.k_rope, args.cache);
    for (int64_t j = 0; j < span.length(); ++j) {
      const double* row = latents.data() + j * latent_dim;
      void* latent = element_address(args.latent, span.row_begin + j);
      for (int64_t d = 0; d < latent_dim; ++d) {
        store_float(latent, args.latent.dtype, d, static_cast<float>(row[d]));
      }
      for (int64_t head = 0; head < plan.dims.num_heads; ++head) {
        const std::vector<double> expanded = up_project(weights, head, row);
        void* target = element_address(args.expanded, span.row_begin + j, head);
        for (size_t d = 0; d < expanded.size(); ++d) {
          store_float(target, args.expanded.dtype, static_cast<int64_t>(d), static_cast<float>(expanded[d]));
        }
      }
    }
  }
}

void fused_layer(const FusedLayerArgs& args, const Weights& weights) {
  const Plan& plan = *args.plan;
  const LayerTensors& tensors = args.tensors;
  for (int32_t request = 0; request < plan.num_requests; ++request) {
    const auto r = static_cast<size_t>(request);
    if (plan.query_lens[r] == 0) continue;
    const int64_t context = plan.context_lens[r];
    const std::vector<double> latents = gather_latents(plan, request, 0, context + plan.query_lens[r],
                                                       tensors.kv_latent, tensors.k_rope, tensors.cache);
    for (int64_t head = 0; head < plan.dims.num_heads; ++head) {
      const HeadKeys keys = expand_head(weights, head, latents);
      for (int64_t i = 0; i < plan.query_lens[r]; ++i) {
        const int64_t row = plan.query_start_loc[r] + i;
        SoftmaxState state(keys.v_dim);
        const std::vector<double> q = load_rows(tensors.q, row, 1, head);
        absorb(keys, 0, context + i + 1, q.data(), plan.dims.softmax_scale, state);
        void* out = element_address(tensors.out, row, head);
        for (int64_t d = 0; d < keys.v_dim; ++d) {
          store_float(out, tensors.out.dtype, d, static_cast<float>(normalised(state, d)));
        }
        const LseView& lse = tensors.lse;
        if (lse.data != nullptr) {
          lse.data[head * lse.head_stride + row * lse.token_stride] =
              static_cast<float>(log_sum_exp(state, lse.base));
        }
      }
    }
  }
}

}  // namespace mlaprefill::reference
