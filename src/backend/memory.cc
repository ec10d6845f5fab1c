// Host memory, and what a backend without a device does when asked to prepare one.
#include <cstdlib>
#include <cstring>

#include "core/error.h"
#include "mlaprefill/backend.h"

namespace mlaprefill {
namespace {

class HostMemory final : public Memory {
 public:
  Result<void*> allocate(int64_t size_bytes) const override {
    if (size_bytes < 0) return invalid("size_bytes: must be >= 0, got {}", size_bytes);
    if (size_bytes == 0) return static_cast<void*>(nullptr);
    const size_t rounded = (static_cast<size_t>(size_bytes) + 255) / 256 * 256;
    void* data = std::aligned_alloc(256, rounded);
    if (data == nullptr) {
      return error(StatusCode::kLimitExceeded, "size_bytes: must fit the host's memory, got {}", size_bytes);
    }
    return data;
  }

  void release(void* data) const override { std::free(data); }

  Status copy_from_host(void* to, const void* from, int64_t size_bytes, Stream) const override {
    return copy(to, from, size_bytes);
  }
  Status copy_to_host(void* to, const void* from, int64_t size_bytes, Stream) const override {
    return copy(to, from, size_bytes);
  }
  Status synchronize(Stream) const override { return {}; }

 private:
  static Status copy(void* to, const void* from, int64_t size_bytes) {
    if (size_bytes < 0) return invalid("size_bytes: must be >= 0, got {}", size_bytes);
    if (size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
    return {};
  }
};

}  // namespace

const Memory& host_memory() {
  static const HostMemory memory;
  return memory;
}

Status Backend::upload(const Plan&, Workspace, Stream) const { return {}; }

int64_t Backend::attention_workspace_bytes(const AttentionArgs&) const { return 0; }

}  // namespace mlaprefill
