// Latents of 64 keys up-projected for one head, in float32 or straight into key and value panels.
#pragma once

#include "backend/cpu/flash.h"
#include "backend/cpu/latents.h"
#include "backend/cpu/weights.h"

namespace mlaprefill::cpu {

/// Float32 products of 64 keys with one panel of weights, in memory it keeps.
class UpProjection {
 public:
  static constexpr int64_t kStride = kPanelColumns + 16;  ///< of a product's rows, in floats

  /// Allocates; to be called before the products.
  void reserve() { product_ = buffer_.reserve<float>(kPanelColumns * kStride); }

  /// [64 keys, 64 columns], of which the first `count` keys are computed.
  const float* multiply(const PackedWeights& weights, const std::byte* weight_panel,
                        const std::byte* latent_rows, int64_t latent_stride, int64_t count);

 private:
  float* product_ = nullptr;
  AlignedBuffer buffer_;
};

/// Chunks of one head's keys and values for Flash, up-projected from a store.
class ChunkProjector {
 public:
  /// Allocates all that chunks of up to `keys` keys need.
  void reserve(const FlashShape& shape, int64_t keys);

  KeyChunk project(const FlashShape& shape, const PackedWeights& weights, DType working_dtype,
                   const LatentStore& store, const RequestGroup& group, int64_t head, int64_t key_begin,
                   int64_t key_end);

 private:
  void project_keys(const FlashShape& shape, const PackedWeights& weights, DType working_dtype,
                    const LatentStore& store, int64_t store_key, int64_t count, int64_t head,
                    std::byte* key_panel);

  UpProjection product_;
  std::byte* key_rows_ = nullptr;  ///< 64 keys before they are transposed
  std::byte* keys_ = nullptr;
  std::byte* values_ = nullptr;
  bool* finite_ = nullptr;
  AlignedBuffer row_buffer_, key_buffer_, value_buffer_, finite_buffer_;
};

}  // namespace mlaprefill::cpu
