// The header of a safetensors file: names, dtypes, shapes and places of tensors, and string metadata.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mlaprefill/status.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill {

/// Longest header read, the limit of the format's own library.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string dtype_name;      ///< as the file spells it, e.g. "BF16"
  std::optional<DType> dtype;  ///< empty: a dtype of the format this library does not compute with
  std::vector<int64_t> shape;
  int64_t begin_bytes = 0;  ///< from the start of the data
  int64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
};

/// The format's name of a dtype, e.g. "F8_E4M3".
std::string_view safetensors_name(DType dtype);

/// Parses and checks header text for a file with `data_bytes` bytes after the header: the tensors' sizes
/// agree with dtype and shape, and the tensors cover the data exactly once. Memory used is proportional to
/// the text. `where` starts every error message.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view where, std::string_view text,
                                                   int64_t data_bytes);

}  // namespace mlaprefill
