// Stands in for the Hopper backend in a build without CUDA.
#include "backend/internal.h"
#include "backend/sm90/availability.h"
#include "core/error.h"

namespace mlaprefill {

BackendInfo sm90_backend_info() {
  return {.name = "sm90", .available = false, .reasons = sm90::unavailable_reasons({.built = false})};
}

Result<std::unique_ptr<Backend>> open_sm90_backend(const BackendOptions&) {
  return error(StatusCode::kUnavailable, "sm90: {}", sm90_backend_info().reasons.front());
}

}  // namespace mlaprefill
