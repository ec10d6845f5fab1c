// Latents of 64 keys up-projected for one head, in float32 or straight into key and value panels.
#pragma once

#include "backend/cpu/flash.h"
#include "backend/cpu/latents.h"
#include "backend/cpu/weights.h"

namespace mlaprefill::cpu {

/// Float32 products of 64 keys, in memory it keeps.
class UpProjection {
 public:
  static constexpr int64_t kStride = kPanelColumns + 16;  ///< of a product's rows, in floats

  /// Allocates; to be called before the products of these dims.
  void reserve(const MlaDims& dims);

  /// [nope, 64 keys], of which the first `count` keys are computed.
  const float* keys(const PackedWeights& weights, const MlaDims& dims, const std::byte* latent_panel,
                    int64_t count, int64_t head);
  /// [64 keys, 64 value columns], of which the first `count` keys are computed.
  const float* values(const PackedWeights& weights, const std::byte* latent_rows, int64_t latent_stride,
                      int64_t count, int64_t head, int64_t value_panel);

 private:
  float* product_ = nullptr;
  AlignedBuffer buffer_;
};

/// Chunks of one head's keys and values for Flash, up-projected from a store.
class ChunkProjector {
 public:
  /// Allocates all that chunks of up to `keys` keys need.
  void reserve(const FlashShape& shape, const MlaDims& dims, int64_t keys);

  KeyChunk project(const FlashShape& shape, const PackedWeights& weights, const MlaDims& dims,
                   DType working_dtype, const LatentStore& store, const RequestGroup& group, int64_t head,
                   int64_t key_begin, int64_t key_end);

 private:
  UpProjection product_;
  std::byte* keys_ = nullptr;
  std::byte* values_ = nullptr;
  bool* finite_ = nullptr;
  AlignedBuffer key_buffer_, value_buffer_, finite_buffer_;
};

}  // namespace mlaprefill::cpu
