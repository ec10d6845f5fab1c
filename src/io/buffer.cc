#include "io/buffer.h"

#include <algorithm>
#include <new>

#include "core/error.h"

namespace mlaprefill {

void Buffer::Release::operator()(std::byte* data) const {
  ::operator delete (data, std::align_val_t{kAlignmentBytes});
}

Result<Buffer> Buffer::allocate(int64_t size_bytes) {
  if (size_bytes < 0) return invalid("memory: must be >= 0 bytes, got {}", size_bytes);
  // One byte at least, so that an empty tensor still has an address.
  const auto size = static_cast<size_t>(std::max<int64_t>(size_bytes, 1));
  void* data = ::operator new (size, std::align_val_t{kAlignmentBytes}, std::nothrow);
  if (data == nullptr) {
    return error(StatusCode::kLimitExceeded, "memory: must be at most what the system can give, got {} bytes",
                 size_bytes);
  }
  Buffer buffer;
  buffer.data_.reset(static_cast<std::byte*>(data));
  buffer.size_bytes_ = size_bytes;
  return buffer;
}

}  // namespace mlaprefill
