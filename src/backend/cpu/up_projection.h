// Latents of 64 keys up-projected for one head, in float32 or straight into key and value panels.
#pragma once

#include "backend/cpu/flash.h"
#include "backend/cpu/latents.h"
#include "backend/cpu/weights.h"

namespace mlaprefill::cpu {

/// Float32 keys and values of one head for 64 latents, in memory it keeps.
class UpProjection {
 public:
  /// Allocates; to be called before the products with these weights.
  void reserve(const PackedWeights& weights);

  /// Computes the first `count` rows.
  void multiply(const PackedWeights& weights, int64_t head, const std::byte* latent_rows,
                int64_t latent_stride, int64_t count);

  const float* keys() const { return product_; }
  const float* values() const { return values_; }
  int64_t stride() const { return stride_; }

 private:
  float* product_ = nullptr;  ///< [64 keys, columns of all panels of a head]
  float* values_ = nullptr;
  int64_t stride_ = 0;
  AlignedBuffer buffer_;
};

/// Chunks of one head's keys and values for Flash, up-projected from a store.
class ChunkProjector {
 public:
  /// Allocates all that chunks of up to `keys` keys need.
  void reserve(const FlashShape& shape, const PackedWeights& weights, int64_t keys);

  KeyChunk project(const FlashShape& shape, const PackedWeights& weights, DType working_dtype,
                   const LatentStore& store, const RequestGroup& group, int64_t head, int64_t key_begin,
                   int64_t key_end);

 private:
  void pack_keys(const FlashShape& shape, DType working_dtype, int64_t count, std::byte* panel);
  /// Returns whether all values are finite.
  bool pack_values(const FlashShape& shape, DType working_dtype, int64_t rows, std::byte* panel,
                   int64_t panel_bytes);

  UpProjection product_;
  std::byte* key_rows_ = nullptr;  ///< 64 keys before they are transposed
  std::byte* keys_ = nullptr;
  std::byte* values_ = nullptr;
  bool* finite_ = nullptr;
  AlignedBuffer row_buffer_, key_buffer_, value_buffer_, finite_buffer_;
};

}  // namespace mlaprefill::cpu
