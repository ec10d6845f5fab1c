#include "io/safetensors_file.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/error.h"

namespace mlaprefill {
namespace {

constexpr int64_t kLengthBytes = 8;

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  auto file = InputFile::open(path);
  if (!file.ok()) return file.status();
  if (file->size_bytes() < kLengthBytes) {
    return error(StatusCode::kParseError, "{}: must start with {} bytes of header length, got {} bytes", path,
                 kLengthBytes, file->size_bytes());
  }
  std::array<std::byte, kLengthBytes> length_bytes{};
  MLAPREFILL_RETURN_IF_ERROR(file->read_at(0, length_bytes));
  uint64_t length = 0;
  for (size_t i = 0; i < length_bytes.size(); ++i) {
    length |= std::to_integer<uint64_t>(length_bytes[i]) << (8 * i);
  }
  const int64_t limit = std::min(file->size_bytes() - kLengthBytes, kMaxSafetensorsHeaderBytes);
  if (length > static_cast<uint64_t>(limit)) {
    return error(StatusCode::kParseError, "{}: header length must be <= {} bytes, got {}", path, limit,
                 length);
  }
  std::string text(length, '\0');
  MLAPREFILL_RETURN_IF_ERROR(file->read_at(kLengthBytes, std::as_writable_bytes(std::span(text))));
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  auto header = parse_safetensors_header(path, text, file->size_bytes() - data_begin);
  if (!header.ok()) return header.status();
  return SafetensorsFile(std::move(file).value(), std::move(header).value(), data_begin);
}

Result<OwnedTensor> SafetensorsFile::read(std::string_view name) const {
  const auto found = header_.tensors.find(name);
  if (found == header_.tensors.end()) {
    return invalid("{}: {}: must be in the file, got no such tensor", path(), name);
  }
  const SafetensorsEntry& entry = found->second;
  if (!entry.dtype) {
    return invalid("{}: {}: dtype must be one of F32, F16, BF16, F8_E4M3, U8, I32, I64, got {}", path(), name,
                   entry.dtype_name);
  }
  auto tensor = OwnedTensor::allocate(*entry.dtype, entry.shape);
  if (!tensor.ok()) {
    return Status(tensor.status().code(), fmt::format("{}: {}: {}", path(), name, tensor.status().message()));
  }
  MLAPREFILL_RETURN_IF_ERROR(file_.read_at(data_begin_bytes_ + entry.begin_bytes, tensor->memory.bytes()));
  return tensor;
}

}  // namespace mlaprefill
