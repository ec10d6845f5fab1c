// The reference's operations, one file each. Arguments have been validated.
#pragma once

#include <vector>

#include "mlaprefill/backend.h"

namespace mlaprefill::reference {

/// kv_b_proj in fp64.
class Weights final : public LayerWeights {
 public:
  Weights(const MlaDims& layer_dims, const ConstTensor& kv_b_proj);

  MlaDims dims;
  std::vector<double> values;  ///< [num_heads, kv_lora_rank, nope + v]
};

void attention(const AttentionArgs& args);
void merge(const MergeArgs& args);
void append(const AppendArgs& args);
void expand(const ExpandArgs& args, const Weights& weights);
void fused_layer(const FusedLayerArgs& args, const Weights& weights);

/// Latents and rope of `count` keys of a request from position key_begin on, cached or new:
/// [count, kv_lora_rank + rope].
std::vector<double> gather_latents(const Plan& plan, int32_t request, int64_t key_begin, int64_t count,
                                   const ConstTensor& kv_latent, const ConstTensor& k_rope,
                                   const KvCache& cache);

/// [nope + v] of one head of one latent row.
std::vector<double> up_project(const Weights& weights, int64_t head, const double* latent);

/// Rows of a tensor's head as fp64, [count, columns].
std::vector<double> load_rows(const ConstTensor& tensor, int64_t row_begin, int64_t count, int64_t head);

}  // namespace mlaprefill::reference
