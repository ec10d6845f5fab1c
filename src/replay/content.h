// The numbers a replay feeds the layer: the same token always has the same latent, wherever it is computed or
// cached.
#pragma once

#include <cstdint>
#include <vector>

#include "io/traces/trace.h"
#include "mlaprefill/dims.h"

namespace mlaprefill {

/// Seeded bf16 latents, queries and weights. A token inside a prefix block is told by the block and its place
/// there, so requests that share a block share its latents; other tokens are told by request and position.
/// Rows are cut from one pool of normal deviates at a hashed place.
class Content {
 public:
  Content(const Trace& trace, const MlaDims& dims, uint64_t seed);

  /// kv_lora_rank + rope values of token `position` of a request in a layer, in bf16.
  const uint16_t* latent(int32_t request, int64_t position, int64_t layer) const;
  /// num_heads * (nope + rope) values of the query at `position`.
  const uint16_t* query(int32_t request, int64_t position, int64_t layer) const;
  /// kv_b_proj [num_heads * (nope + v), kv_lora_rank] of a layer, scaled so that expanded values have unit
  /// variance.
  std::vector<uint16_t> weights(int64_t layer) const;

 private:
  const uint16_t* row(uint64_t hash, int64_t length) const;

  const Trace* trace_;
  MlaDims dims_;
  uint64_t seed_;
  std::vector<uint16_t> pool_;
};

}  // namespace mlaprefill
