// The backends of this machine, each ISA level of the CPU one apart.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mlaprefill/backend.h"

namespace mlaprefill {

struct NamedBackend {
  std::string name;  ///< "reference", "cpu/avx512_bf16", "sm90" ...
  std::unique_ptr<Backend> backend;
};

/// Opened once for the process. `reference` comes first.
const std::vector<NamedBackend>& test_backends();

}  // namespace mlaprefill
