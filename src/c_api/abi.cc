#include "c_api/abi.h"

namespace mlaprefill::c_api {

void write_string(std::string_view text, char* buffer, size_t capacity, size_t* length_bytes) {
  if (buffer != nullptr && capacity > 0) {
    const size_t copied = std::min(text.size(), capacity - 1);
    std::memcpy(buffer, text.data(), copied);
    buffer[copied] = '\0';
  }
  if (length_bytes != nullptr) *length_bytes = text.size();
}

mlaprefill_status report(StatusCode code, std::string_view message, mlaprefill_error* error) noexcept {
  const auto number = static_cast<mlaprefill_status>(code);
  if (error != nullptr && error->struct_size > offsetof(mlaprefill_error, message)) {
    error->code = number;
    write_string(message, error->message, error->struct_size - offsetof(mlaprefill_error, message),
                 &error->message_length);
  }
  return number;
}

}  // namespace mlaprefill::c_api
