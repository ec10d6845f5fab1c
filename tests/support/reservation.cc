#include "support/reservation.h"

#include <sys/mman.h>

namespace mlaprefill {

Reservation::Reservation(int64_t size_bytes) : size_bytes_(static_cast<size_t>(size_bytes)), data_(nullptr) {
  void* mapped =
      mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped != MAP_FAILED) data_ = static_cast<std::byte*>(mapped);
}

Reservation::~Reservation() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

}  // namespace mlaprefill
