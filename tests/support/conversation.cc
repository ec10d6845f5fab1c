#include "support/conversation.h"

#include <algorithm>

#include "backend/latent_cache.h"
#include "core/float_formats.h"

namespace mlaprefill {
namespace {

void fill_e4m3(verify::HostTensor& tensor, verify::Random& random) {
  const Tensor view = tensor.view();
  for (int64_t row = 0; row < view.shape[0]; ++row) {
    for (int64_t d = 0; d < view.shape[1]; ++d) {
      tensor.set(float_from_f8_e4m3(f8_e4m3_from_float(random.normal())), row, d);
    }
  }
}

}  // namespace

Conversation::Conversation(const MlaDims& dims, int32_t tokens, DType dtype)
    : dims_(dims),
      dtype_(dtype),
      q_(dtype, {tokens, dims.num_heads, dims.qk_head_dim()}),
      kv_latent_(dtype, {tokens, dims.kv_lora_rank}),
      k_rope_(dtype, {tokens, dims.qk_rope_head_dim}) {
  verify::Random random(static_cast<uint64_t>(tokens));
  verify::fill_random(q_, random);
  fill_e4m3(kv_latent_, random);
  fill_e4m3(k_rope_, random);
}

verify::LayerInputs Conversation::inputs(int32_t context, int32_t end, DType cache_dtype,
                                         int32_t block_size) const {
  const Conversation* const self = this;
  const verify::LayerCase::Request request{end - context, context};
  return batch({&self, 1}, {&request, 1}, cache_dtype, block_size);
}

verify::LayerInputs Conversation::batch(std::span<const Conversation* const> conversations,
                                        std::span<const verify::LayerCase::Request> requests,
                                        DType cache_dtype, int32_t block_size) {
  verify::LayerCase layer_case;
  layer_case.name = "conversation";
  layer_case.dims = conversations.front()->dims_;
  layer_case.dtype = layer_case.out_dtype = conversations.front()->dtype_;
  layer_case.cache_dtype = cache_dtype;
  layer_case.block_size = block_size;
  layer_case.requests.assign(requests.begin(), requests.end());
  verify::LayerInputs inputs(layer_case);
  const MlaDims& dims = layer_case.dims;
  // Weights must not depend on the batch.
  verify::Random random(1);
  verify::fill_random(inputs.kv_b_proj, random, 0.125f);

  const KvCache cache{inputs.cache.view(), 1.0f};
  std::vector<float> latent(static_cast<size_t>(dims.latent_dim()));
  for (size_t r = 0; r < requests.size(); ++r) {
    const Conversation& from = *conversations[r];
    for (int64_t token = 0; token < requests[r].context + requests[r].queries; ++token) {
      for (int64_t d = 0; d < dims.latent_dim(); ++d) {
        latent[static_cast<size_t>(d)] = d < dims.kv_lora_rank
                                             ? from.kv_latent_.get(token, d)
                                             : from.k_rope_.get(token, d - dims.kv_lora_rank);
      }
      const int64_t row = inputs.query_start_loc[r] + token - requests[r].context;
      if (token < requests[r].context) {
        const int64_t entry = static_cast<int64_t>(r) * inputs.block_table_cols + token / block_size;
        write_latent_row(cache, inputs.block_table[static_cast<size_t>(entry)], token % block_size,
                         dims.latent_dim(), latent.data());
        continue;
      }
      for (int64_t d = 0; d < dims.latent_dim(); ++d) {
        const float value = latent[static_cast<size_t>(d)];
        d < dims.kv_lora_rank ? inputs.kv_latent.set(value, row, d)
                              : inputs.k_rope.set(value, row, d - dims.kv_lora_rank);
      }
      for (int64_t head = 0; head < dims.num_heads; ++head) {
        for (int64_t d = 0; d < dims.qk_head_dim(); ++d) {
          inputs.q.set(from.q_.get(token, head, d), row, head, d);
        }
      }
    }
  }
  return inputs;
}

std::vector<verify::ExpectedRow> expect_last(const verify::LayerInputs& inputs, int64_t rows) {
  const auto plan = inputs.plan({}, {});
  if (!plan.ok()) return {};
  const auto heads = verify::all_heads(inputs.config.dims.num_heads);
  std::vector<verify::RowHead> at = verify::all_rows(plan.value(), heads);
  const auto keep = static_cast<size_t>(rows * inputs.config.dims.num_heads);
  if (at.size() > keep) at.erase(at.begin(), at.end() - static_cast<std::ptrdiff_t>(keep));
  return verify::expect_layer(plan.value(), inputs.kv_b_proj.view(), inputs.host_tensors(), at);
}

}  // namespace mlaprefill
