#include "io/backend_buffer.h"

#include <utility>

namespace mlaprefill {

BackendBuffer::BackendBuffer(BackendBuffer&& other) noexcept
    : memory_(other.memory_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

BackendBuffer::~BackendBuffer() { memory_->release(data_); }

Status BackendBuffer::reserve(int64_t size_bytes) {
  if (size_bytes <= size_bytes_) return {};
  memory_->release(std::exchange(data_, nullptr));
  size_bytes_ = 0;
  const Result<void*> memory = memory_->allocate(size_bytes);
  if (!memory.ok()) return memory.status();
  data_ = memory.value();
  size_bytes_ = size_bytes;
  return {};
}

}  // namespace mlaprefill
