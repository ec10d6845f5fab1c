// Launches that move latents: paged cache and new tokens into the workspace, new tokens into the cache.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/sm90/metadata.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill::sm90 {

/// Rows of `width` contiguous elements of device memory, row_stride elements apart.
struct RowView {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t row_stride = 0;
};

/// A paged cache; kU8 is the packed row. Strides are in elements.
struct CacheView {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t blocks = 0;
  int64_t block_size = 0;
  int64_t block_stride = 0;
  int64_t row_stride = 0;
  float scale = 1.0f;
};

/// Fills `rows` rows of the workspace: those of the pass's spans with their latents, all others with zeros. A
/// block id outside the cache gives a row of NaN.
struct GatherArgs {
  const void* metadata = nullptr;  ///< device memory, MetadataHeader first
  int64_t pass = 0;
  int64_t rows = 0;
  int32_t latent_width = 0;
  int32_t rope_width = 0;
  RowView new_latents;
  RowView new_rope;
  CacheView cache;
  RowView out;  ///< latent_width + rope_width wide
};
cudaError_t launch_gather(const GatherArgs& args, int32_t processors, cudaStream_t stream);

/// Writes token i to cache slot slots[i]; slots below 0 or past the cache are skipped.
struct AppendLaunch {
  const int64_t* slots = nullptr;  ///< device memory
  int64_t tokens = 0;
  int32_t latent_width = 0;
  int32_t rope_width = 0;
  RowView latents;
  RowView rope;
  CacheView cache;
};
cudaError_t launch_append(const AppendLaunch& args, int32_t processors, cudaStream_t stream);

}  // namespace mlaprefill::sm90
