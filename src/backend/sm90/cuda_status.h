// CUDA's error codes as Status.
#pragma once

#include <cuda_runtime_api.h>

#include "core/error.h"

namespace mlaprefill::sm90 {

inline Status cuda_status(cudaError_t code, const char* where) {
  if (code == cudaSuccess) return {};
  return error(StatusCode::kDeviceError, "{}: the CUDA runtime must accept it, got \"{}\"", where,
               cudaGetErrorString(code));
}

}  // namespace mlaprefill::sm90
