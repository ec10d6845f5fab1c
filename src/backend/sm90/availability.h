// Why the Hopper backend can or cannot run on a device. Compiled on every machine; calls no CUDA function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mlaprefill::sm90 {

/// What was found on this machine.
struct DeviceFacts {
  bool built = true;           ///< the library was built with MLAPREFILL_CUDA
  std::string driver_error{};  ///< the CUDA runtime's words when no device could be listed
  int32_t device_count = 0;
  int32_t device = 0;            ///< ordinal asked for
  int32_t capability_major = 0;  ///< of that device
  int32_t capability_minor = 0;
  std::string projection_error{};  ///< why cublasLt could not be loaded; empty: it was
};

/// Every reason against, the most basic first; empty: the backend can be opened.
std::vector<std::string> unavailable_reasons(const DeviceFacts& facts);

}  // namespace mlaprefill::sm90
