// Metadata that is small enough to travel as kernel parameters.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace mlaprefill::sm90 {

/// With the target's address, what every driver takes as parameters.
inline constexpr int64_t kSmallMetadataBytes = 4032;

struct alignas(16) SmallMetadata {
  std::array<std::byte, kSmallMetadataBytes> bytes;
};

/// Writes the first `size_bytes`, rounded up to 16, to 16-byte aligned device memory. Unlike a copy it needs
/// no pinned buffer, so it may be captured, and the stream need not wait for a copy engine.
cudaError_t store_small_metadata(const SmallMetadata& metadata, int64_t size_bytes, void* device,
                                 cudaStream_t stream);

}  // namespace mlaprefill::sm90
