#include "replay/content.h"

#include <cmath>

#include "core/float_formats.h"
#include "replay/random.h"

namespace mlaprefill {
namespace {

constexpr size_t kPoolValues = size_t{1} << 20;

enum Stream : uint64_t { kPool = 1, kSharedToken, kOwnToken, kQuery, kWeights };

}  // namespace

Content::Content(const Trace& trace, const MlaDims& dims, uint64_t seed)
    : trace_(&trace), dims_(dims), seed_(seed), pool_(kPoolValues) {
  Random random(mix64(seed_, kPool));
  for (uint16_t& value : pool_) value = bf16_from_float(static_cast<float>(random.normal()));
}

const uint16_t* Content::row(uint64_t hash, int64_t length) const {
  return pool_.data() + hash % (kPoolValues - static_cast<size_t>(length));
}

const uint16_t* Content::latent(int32_t request, int64_t position, int64_t layer) const {
  const TraceRequest& r = trace_->requests[static_cast<size_t>(request)];
  const int64_t block_tokens = trace_->block_tokens;
  if (block_tokens > 0 && position / block_tokens < r.blocks_end - r.blocks_begin) {
    const int64_t block = trace_->blocks_of(r)[static_cast<size_t>(position / block_tokens)];
    return row(mix64(seed_, kSharedToken, layer, block, position % block_tokens), dims_.latent_dim());
  }
  return row(mix64(seed_, kOwnToken, layer, request, position), dims_.latent_dim());
}

const uint16_t* Content::query(int32_t request, int64_t position, int64_t layer) const {
  return row(mix64(seed_, kQuery, layer, request, position), dims_.num_heads * dims_.qk_head_dim());
}

std::vector<uint16_t> Content::weights(int64_t layer) const {
  Random random(mix64(seed_, kWeights, layer));
  const double scale = 1.0 / std::sqrt(static_cast<double>(dims_.kv_lora_rank));
  std::vector<uint16_t> values(
      static_cast<size_t>(dims_.num_heads * dims_.expanded_head_dim() * dims_.kv_lora_rank));
  for (uint16_t& value : values) value = bf16_from_float(static_cast<float>(random.normal() * scale));
  return values;
}

}  // namespace mlaprefill
