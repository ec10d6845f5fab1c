// Owned, aligned, uninitialised memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "mlaprefill/status.h"

namespace mlaprefill {

/// Move-only memory aligned to 256 bytes, as a composed layer's workspace wants it.
class Buffer {
 public:
  static constexpr int64_t kAlignmentBytes = 256;

  Buffer() = default;
  /// kLimitExceeded when the system has not that much memory to give.
  static Result<Buffer> allocate(int64_t size_bytes);

  std::byte* data() const { return data_.get(); }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> bytes() const { return {data_.get(), static_cast<size_t>(size_bytes_)}; }

 private:
  struct Release {
    void operator()(std::byte* data) const;
  };

  std::unique_ptr<std::byte, Release> data_;
  int64_t size_bytes_ = 0;
};

}  // namespace mlaprefill
