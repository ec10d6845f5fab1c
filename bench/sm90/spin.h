// Keeps a stream busy for a while.
#pragma once

#include <cuda_runtime_api.h>

namespace mlaprefill::bench {

cudaError_t spin(double milliseconds, cudaStream_t stream);

}  // namespace mlaprefill::bench
