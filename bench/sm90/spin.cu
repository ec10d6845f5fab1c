#include "spin.h"

#include <cstdint>

namespace mlaprefill::bench {
namespace {

__global__ void spin_kernel(uint64_t nanoseconds) {
  uint64_t now = 0;
  uint64_t begin = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

}  // namespace

cudaError_t spin(double milliseconds, cudaStream_t stream) {
  spin_kernel<<<1, 1, 0, stream>>>(static_cast<uint64_t>(milliseconds * 1e6));
  return cudaGetLastError();
}

}  // namespace mlaprefill::bench
