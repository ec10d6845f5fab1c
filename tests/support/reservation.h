// Address space without memory: pages appear, zeroed, when they are touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mlaprefill {

class Reservation {
 public:
  explicit Reservation(int64_t size_bytes);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  /// Null where the system refuses so large a reservation; tests then skip.
  std::byte* data() const { return data_; }

 private:
  size_t size_bytes_;
  std::byte* data_;
};

}  // namespace mlaprefill
