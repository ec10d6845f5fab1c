// Writing a safetensors file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "io/file.h"
#include "mlaprefill/status.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill {

struct NamedTensor {
  std::string name;
  ConstTensor tensor;  ///< contiguous
};

/// Writes the tensors and the string metadata into `file`, which the caller commits. The header is padded to
/// a multiple of 8 bytes and wider dtypes come first, so every tensor is aligned in the file.
Status write_safetensors(OutputFile& file, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& metadata = {});

}  // namespace mlaprefill
