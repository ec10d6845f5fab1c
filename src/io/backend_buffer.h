// One allocation in the memory a backend's tensors live in.
#pragma once

#include <cstdint>

#include "mlaprefill/backend.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

/// Memory in a backend's own space, filled from and read back to the host.
class BackendBuffer {
 public:
  explicit BackendBuffer(const Memory& memory) : memory_(&memory) {}
  BackendBuffer(BackendBuffer&& other) noexcept;
  BackendBuffer& operator=(BackendBuffer&&) = delete;
  ~BackendBuffer();

  /// At least this many bytes; what was there is lost when it has to grow.
  Status reserve(int64_t size_bytes);

  void* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  const Memory* memory_;
  void* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace mlaprefill
