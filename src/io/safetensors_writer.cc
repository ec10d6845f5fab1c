#include "io/safetensors_writer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>

#include "core/error.h"
#include "io/safetensors_header.h"

namespace mlaprefill {
namespace {

int64_t contiguous_bytes(const ConstTensor& tensor) {
  int64_t size = size_bytes(tensor.dtype);
  for (int32_t axis = 0; axis < tensor.rank; ++axis) size *= tensor.shape[static_cast<size_t>(axis)];
  return size;
}

std::array<std::byte, 8> little_endian(uint64_t value) {
  std::array<std::byte, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  return bytes;
}

}  // namespace

Status write_safetensors(OutputFile& file, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensor> ordered = tensors;
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return size_bytes(a.tensor.dtype) > size_bytes(b.tensor.dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const NamedTensor& named : ordered) {
    const int64_t end = offset + contiguous_bytes(named.tensor);
    const std::span<const int64_t> shape(named.tensor.shape.data(), static_cast<size_t>(named.tensor.rank));
    header[named.name] = {{"dtype", safetensors_name(named.tensor.dtype)},
                          {"shape", std::vector<int64_t>(shape.begin(), shape.end())},
                          {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  MLAPREFILL_RETURN_IF_ERROR(file.write(little_endian(text.size())));
  MLAPREFILL_RETURN_IF_ERROR(file.write(text));
  for (const NamedTensor& named : ordered) {
    MLAPREFILL_RETURN_IF_ERROR(file.write(std::span(static_cast<const std::byte*>(named.tensor.data),
                                                    static_cast<size_t>(contiguous_bytes(named.tensor)))));
  }
  return {};
}

}  // namespace mlaprefill
