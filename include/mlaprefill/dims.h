// Dimensions of one MLA layer and the softmax scale that goes with them.
#pragma once

#include <cstdint>

#include "mlaprefill/status.h"

namespace mlaprefill {

/// Dimensions of one MLA attention layer on this rank.
struct MlaDims {
  int32_t num_heads = 0;         ///< query heads on this rank, 1..256
  int32_t kv_lora_rank = 0;      ///< width of a cached latent without rope, multiple of 16, <= 1024
  int32_t qk_nope_head_dim = 0;  ///< multiple of 16, <= 256
  int32_t qk_rope_head_dim = 0;  ///< multiple of 16, <= 128
  int32_t v_head_dim = 0;        ///< multiple of 16, <= 256
  double softmax_scale = 0.0;    ///< multiplies q.k; always given, never guessed; finite, any sign

  int64_t qk_head_dim() const { return int64_t{qk_nope_head_dim} + qk_rope_head_dim; }
  int64_t latent_dim() const { return int64_t{kv_lora_rank} + qk_rope_head_dim; }
  int64_t expanded_head_dim() const { return int64_t{qk_nope_head_dim} + v_head_dim; }
};

/// Checks every field against its limit.
Status validate(const MlaDims& dims);

/// YaRN's attention factor m(factor, mscale_all_dim) = 0.1 * mscale_all_dim * ln(factor) + 1 for factor > 1,
/// else 1. The softmax scale of a YaRN model is m^2 / sqrt(qk_head_dim). Source: the DeepSeek-V2/V3 reference
/// models.
double yarn_mscale(double factor, double mscale_all_dim);
double yarn_softmax_scale(int64_t qk_head_dim, double factor, double mscale_all_dim);

}  // namespace mlaprefill
