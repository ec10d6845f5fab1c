// Host entry of the Hopper attention kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/sm90/attention_params.h"

namespace mlaprefill::sm90 {

enum class Element : uint8_t { kBF16, kF16 };
enum class KernelDims : uint8_t {
  k192x128,  ///< nope 128, rope 64, v 128
  k256x256,  ///< nope 192, rope 64, v 256
};

/// Keys the kernel takes at once; cuts between passes at multiples of it leave results bitwise the same.
constexpr int32_t key_tile_of(KernelDims dims) { return dims == KernelDims::k192x128 ? 128 : 64; }

/// Loads the kernels on the current device; comes before its first launch.
cudaError_t prepare_attention();

/// Enqueues one launch of at most `max_clusters` pairs of CTAs (half the device's SMs is the right number; a
/// cluster without work ends at once). Allocates and waits for nothing.
cudaError_t launch_attention(KernelDims dims, Element element, const AttentionParams& params,
                             int32_t max_clusters, cudaStream_t stream);

}  // namespace mlaprefill::sm90
