// Device memory through the CUDA runtime.
#pragma once

#include "mlaprefill/backend.h"

namespace mlaprefill::sm90 {

class CudaMemory final : public Memory {
 public:
  explicit CudaMemory(int device) : device_(device) {}

  Result<void*> allocate(int64_t size_bytes) const override;
  void release(void* data) const override;
  Status copy_from_host(void* to, const void* from, int64_t size_bytes, Stream stream) const override;
  Status copy_to_host(void* to, const void* from, int64_t size_bytes, Stream stream) const override;
  Status synchronize(Stream stream) const override;

 private:
  int device_;
};

}  // namespace mlaprefill::sm90
