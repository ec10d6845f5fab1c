#include "backend/sm90/staging_ring.h"

#include <algorithm>

#include "backend/sm90/cuda_status.h"

namespace mlaprefill::sm90 {

Result<std::unique_ptr<StagingRing>> StagingRing::create() {
  std::unique_ptr<StagingRing> ring(new StagingRing);
  for (Slot& slot : ring->slots_) {
    MLAPREFILL_RETURN_IF_ERROR(resize(slot, kInitialBytes));
    MLAPREFILL_RETURN_IF_ERROR(
        cuda_status(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "staging event"));
  }
  return ring;
}

StagingRing::~StagingRing() {
  for (Slot& slot : slots_) {
    if (slot.done != nullptr) {
      cudaEventSynchronize(slot.done);
      cudaEventDestroy(slot.done);
    }
    cudaFreeHost(slot.data);
  }
}

Status StagingRing::resize(Slot& slot, int64_t size_bytes) {
  cudaFreeHost(slot.data);
  slot.data = nullptr;
  slot.size_bytes = 0;
  void* data = nullptr;
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(
      cudaHostAlloc(&data, static_cast<size_t>(size_bytes), cudaHostAllocDefault), "staging buffer"));
  slot.data = static_cast<std::byte*>(data);
  slot.size_bytes = size_bytes;
  return {};
}

Result<StagingRing::Lease> StagingRing::acquire(int64_t size_bytes) {
  Slot& slot = slots_[next_.fetch_add(1, std::memory_order_relaxed) % kSlots];
  Lease lease;
  lease.lock_ = std::unique_lock(slot.mutex);
  const cudaError_t state = cudaEventQuery(slot.done);
  if (state == cudaErrorNotReady) {
    MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaEventSynchronize(slot.done), "staging buffer"));
  } else {
    MLAPREFILL_RETURN_IF_ERROR(cuda_status(state, "staging buffer"));
  }
  if (size_bytes > slot.size_bytes) {
    MLAPREFILL_RETURN_IF_ERROR(resize(slot, std::max(size_bytes, 2 * slot.size_bytes)));
  }
  lease.data_ = slot.data;
  lease.done_ = slot.done;
  return lease;
}

Status StagingRing::Lease::copy_to(void* device, int64_t size_bytes, cudaStream_t stream) {
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(
      cudaMemcpyAsync(device, data_, static_cast<size_t>(size_bytes), cudaMemcpyHostToDevice, stream),
      "metadata copy"));
  return cuda_status(cudaEventRecord(done_, stream), "metadata copy");
}

}  // namespace mlaprefill::sm90
