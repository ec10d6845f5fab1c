// One sequence of tokens, to be run as any split into cached and new ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "verify/layer_case.h"

namespace mlaprefill {

/// `tokens` tokens with queries, latents and rope keys that any cache format of e4m3 precision holds exactly,
/// so that a cached token and a new one are the same key.
class Conversation {
 public:
  Conversation(const MlaDims& dims, int32_t tokens, DType dtype = DType::kBF16);

  /// Inputs of a run over tokens [0, end), of which the first `context` are cached.
  verify::LayerInputs inputs(int32_t context, int32_t end, DType cache_dtype, int32_t block_size) const;

  /// Inputs of a batch: request r is the start of conversation r.
  static verify::LayerInputs batch(std::span<const Conversation* const> conversations,
                                   std::span<const verify::LayerCase::Request> requests, DType cache_dtype,
                                   int32_t block_size);

 private:
  MlaDims dims_;
  DType dtype_;
  verify::HostTensor q_;
  verify::HostTensor kv_latent_;
  verify::HostTensor k_rope_;
};

/// The oracle's answer for the last `rows` query rows of the inputs, all heads.
std::vector<verify::ExpectedRow> expect_last(const verify::LayerInputs& inputs, int64_t rows);

}  // namespace mlaprefill
