// Test tensors: poisoned and guarded host memory, and its copies where a backend's tensors live.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mlaprefill/backend.h"

namespace mlaprefill::verify {

/// A strided tensor in its own memory. Every byte that is not an element, guards before and after included,
/// is 0xFF: NaN in each float format. Elements are too until they are set.
class HostTensor {
 public:
  HostTensor() = default;
  /// Without strides: contiguous.
  HostTensor(DType dtype, std::vector<int64_t> shape, std::vector<int64_t> stride = {});

  Tensor view() { return view_at(bytes_.data()); }
  ConstTensor view() const { return const_cast<HostTensor*>(this)->view(); }
  /// The same view over a copy of bytes() at `base`.
  Tensor view_at(void* base) const;

  float get(int64_t i, int64_t j = 0, int64_t k = 0) const;
  void set(float value, int64_t i, int64_t j = 0, int64_t k = 0);

  std::span<std::byte> bytes() { return bytes_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  Tensor shape_;  // data is null
  std::vector<std::byte> bytes_;
};

/// Copies of host tensors in a backend's memory, released with it.
class Placement {
 public:
  explicit Placement(const Backend& backend) : memory_(backend.memory()) {}
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  /// A copy of the tensor, guards included.
  Tensor put(const HostTensor& tensor);
  /// An uninitialised buffer filled with 0xFF and guarded.
  void* put_buffer(int64_t size_bytes);
  /// What `placed` (a view that put returned for a tensor like `like`) holds now.
  HostTensor get(const Tensor& placed, const HostTensor& like) const;
  /// Whether both guards of a put_buffer are intact.
  bool guards_intact(const void* buffer, int64_t size_bytes) const;

  /// The first failure of the memory, if any.
  const Status& status() const { return status_; }

 private:
  std::byte* copy(std::span<const std::byte> bytes);
  void note(const Status& status) const;

  const Memory& memory_;
  std::vector<void*> allocated_;
  mutable Status status_;
};

/// Deterministic random numbers, the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next();
  /// In [0, bound).
  int64_t below(int64_t bound);
  /// Sum of four uniform numbers, mean 0, standard deviation 1.
  float normal();

 private:
  uint64_t state_;
};

/// A seed from a case's name.
uint64_t seed_of(std::string_view name);

/// Sets every element to scale * normal(), rounded to the dtype.
void fill_random(HostTensor& tensor, Random& random, float scale = 1.0f);

}  // namespace mlaprefill::verify
