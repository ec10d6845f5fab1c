// A benchmark ends at the first thing that fails.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "mlaprefill/status.h"

namespace mlaprefill::bench {

[[noreturn]] inline void stop(const std::string& why) {
  fmt::print(stderr, "{}\n", why);
  std::exit(1);
}
inline void require(const Status& status) {
  if (!status.ok()) stop(status.message());
}
inline void require(cudaError_t code) {
  if (code != cudaSuccess) stop(cudaGetErrorString(code));
}

}  // namespace mlaprefill::bench
