// Rows of a paged latent cache: one token's kv_lora_rank latents and its rope key, in any storage format.
#pragma once

#include <cstdint>

#include "mlaprefill/backend.h"

namespace mlaprefill {

/// The packed row of a u8 cache.
struct PackedRow {
  static constexpr int64_t kLatents = 512;  ///< e4m3
  static constexpr int64_t kGroup = 128;    ///< latents that share a scale
  static constexpr int64_t kScales = 4;     ///< float32
  static constexpr int64_t kRope = 64;      ///< bf16
  static constexpr int64_t kScalesOffsetBytes = kLatents;
  static constexpr int64_t kRopeOffsetBytes = kScalesOffsetBytes + 4 * kScales;
  static constexpr int64_t kBytes = kRopeOffsetBytes + 2 * kRope;
};

/// out[i] = source[i] as float32, `count` contiguous elements of a float format.
void load_floats(const void* source, DType dtype, int64_t count, float* out);
/// target[i] = source[i] rounded to nearest even.
void store_floats(void* target, DType dtype, int64_t count, const float* source);

/// Dequantises row `offset` of `block` to float32: out[0 .. latent_dim), latents first, then rope.
/// The row lies inside the cache; the caller has checked that.
void read_latent_row(const KvCache& cache, int64_t block, int64_t offset, int64_t latent_dim, float* out);

/// Quantises one token into row `offset` of `block`. A packed row's scale is its group's largest magnitude
/// over 448. Values outside what the format holds saturate.
void write_latent_row(const KvCache& cache, int64_t block, int64_t offset, int64_t latent_dim,
                      const float* values);

}  // namespace mlaprefill
