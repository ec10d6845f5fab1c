// Reading tensors from a safetensors file.
#pragma once

#include <string>
#include <string_view>

#include "io/file.h"
#include "io/owned_tensor.h"
#include "io/safetensors_header.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

/// An opened file whose header has been checked. Tensors are read one by one into aligned memory, whatever
/// their alignment in the file.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  bool has(std::string_view name) const { return header_.tensors.contains(name); }

  /// Reads a tensor of at most 4 dimensions with one of this library's dtypes.
  Result<OwnedTensor> read(std::string_view name) const;

 private:
  SafetensorsFile(InputFile file, SafetensorsHeader header, int64_t data_begin_bytes)
      : file_(std::move(file)), header_(std::move(header)), data_begin_bytes_(data_begin_bytes) {}

  InputFile file_;
  SafetensorsHeader header_;
  int64_t data_begin_bytes_ = 0;
};

}  // namespace mlaprefill
