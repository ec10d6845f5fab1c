#include "backend/sm90/availability.h"

#include <fmt/format.h>

namespace mlaprefill::sm90 {

std::vector<std::string> unavailable_reasons(const DeviceFacts& facts) {
  if (!facts.built) return {"build: must have MLAPREFILL_CUDA=ON, got OFF"};
  if (!facts.driver_error.empty()) {
    return {fmt::format("driver: must list CUDA devices, got \"{}\"", facts.driver_error)};
  }
  if (facts.device_count == 0) return {"device: at least one CUDA device is needed, got none"};
  if (facts.device < 0 || facts.device >= facts.device_count) {
    return {fmt::format("device: must be 0..{}, got {}", facts.device_count - 1, facts.device)};
  }
  std::vector<std::string> reasons;
  if (facts.capability_major != 9 || facts.capability_minor != 0) {
    reasons.push_back(fmt::format("device {}: compute capability must be 9.0, got {}.{}", facts.device,
                                  facts.capability_major, facts.capability_minor));
  }
  if (!facts.projection_error.empty()) {
    reasons.push_back(fmt::format("cublasLt: version 13 must load, got \"{}\"", facts.projection_error));
  }
  return reasons;
}

}  // namespace mlaprefill::sm90
