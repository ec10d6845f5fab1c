#include "backend/sm90/cuda_memory.h"

#include "backend/sm90/cuda_status.h"
#include "backend/sm90/device_guard.h"

namespace mlaprefill::sm90 {
namespace {

Status copy(void* to, const void* from, int64_t size_bytes, cudaMemcpyKind kind, Stream stream) {
  if (size_bytes < 0) return invalid("size_bytes: must be >= 0, got {}", size_bytes);
  if (size_bytes == 0) return {};
  return cuda_status(cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), kind,
                                     static_cast<cudaStream_t>(stream.handle)),
                     "copy");
}

}  // namespace

Result<void*> CudaMemory::allocate(int64_t size_bytes) const {
  if (size_bytes < 0) return invalid("size_bytes: must be >= 0, got {}", size_bytes);
  void* data = nullptr;
  if (size_bytes == 0) return data;
  const DeviceGuard guard(device_);
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaMalloc(&data, static_cast<size_t>(size_bytes)), "allocate"));
  return data;
}

void CudaMemory::release(void* data) const {
  const DeviceGuard guard(device_);
  cudaFree(data);
}

Status CudaMemory::copy_from_host(void* to, const void* from, int64_t size_bytes, Stream stream) const {
  const DeviceGuard guard(device_);
  return copy(to, from, size_bytes, cudaMemcpyHostToDevice, stream);
}

Status CudaMemory::copy_to_host(void* to, const void* from, int64_t size_bytes, Stream stream) const {
  const DeviceGuard guard(device_);
  return copy(to, from, size_bytes, cudaMemcpyDeviceToHost, stream);
}

Status CudaMemory::synchronize(Stream stream) const {
  const DeviceGuard guard(device_);
  return cuda_status(cudaStreamSynchronize(static_cast<cudaStream_t>(stream.handle)), "synchronize");
}

}  // namespace mlaprefill::sm90
