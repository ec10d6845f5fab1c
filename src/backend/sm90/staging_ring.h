// Pinned host buffers that metadata is built in and copied from, reused once the copy is done.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "mlaprefill/status.h"

namespace mlaprefill::sm90 {

/// Any number of threads may use one ring at once. A buffer is waited for only while kSlots copies are in
/// flight, and is enlarged only for metadata larger than any it has held.
class StagingRing {
 public:
  static constexpr int kSlots = 16;
  static constexpr int64_t kInitialBytes = int64_t{1} << 20;

  static Result<std::unique_ptr<StagingRing>> create();
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// One buffer, held by the calling thread until the lease ends.
  class Lease {
   public:
    std::byte* data() const { return data_; }
    /// Enqueues the copy of the first `size_bytes` to device memory; the buffer is free when it is done.
    Status copy_to(void* device, int64_t size_bytes, cudaStream_t stream);

   private:
    friend class StagingRing;
    std::unique_lock<std::mutex> lock_;
    std::byte* data_ = nullptr;
    cudaEvent_t done_ = nullptr;
  };

  Result<Lease> acquire(int64_t size_bytes);

 private:
  struct Slot {
    std::mutex mutex;
    std::byte* data = nullptr;
    int64_t size_bytes = 0;
    cudaEvent_t done = nullptr;
  };

  StagingRing() = default;
  static Status resize(Slot& slot, int64_t size_bytes);

  std::array<Slot, kSlots> slots_;
  std::atomic<uint32_t> next_{0};
};

}  // namespace mlaprefill::sm90
