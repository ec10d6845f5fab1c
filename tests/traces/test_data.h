// The committed sample traces.
#pragma once

#include <string>

namespace mlaprefill {

inline std::string sample_trace(const std::string& name) {
  return std::string(MLAPREFILL_TEST_DATA) + "/traces/" + name;
}

}  // namespace mlaprefill
