#include "backend/sm90/small_metadata.h"

namespace mlaprefill::sm90 {
namespace {

constexpr unsigned kWordBytes = sizeof(uint4);
constexpr unsigned kThreads = kSmallMetadataBytes / kWordBytes;

__global__ void store_kernel(const __grid_constant__ SmallMetadata metadata, uint4* target) {
  cudaTriggerProgrammaticLaunchCompletion();  // the attention kernel sets itself up meanwhile
  target[threadIdx.x] = reinterpret_cast<const uint4*>(&metadata)[threadIdx.x];
}

}  // namespace

cudaError_t store_small_metadata(const SmallMetadata& metadata, int64_t size_bytes, void* device,
                                 cudaStream_t stream) {
  static_assert(kSmallMetadataBytes % kWordBytes == 0 && kThreads <= 1024);
  const unsigned words = (static_cast<unsigned>(size_bytes) + kWordBytes - 1) / kWordBytes;
  store_kernel<<<1, words, 0, stream>>>(metadata, static_cast<uint4*>(device));
  return cudaGetLastError();
}

}  // namespace mlaprefill::sm90
