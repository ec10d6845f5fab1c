// A contiguous tensor that owns its memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "io/buffer.h"
#include "mlaprefill/status.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill {

struct OwnedTensor {
  Buffer memory;
  Tensor view;

  /// Uninitialised memory for at most 4 dimensions, each >= 0; products are checked in 64 bit.
  static Result<OwnedTensor> allocate(DType dtype, std::span<const int64_t> shape);

  bool present() const { return view.present(); }
  int64_t extent(int axis) const { return view.shape[static_cast<size_t>(axis)]; }
  int64_t elements() const;
};

/// "[2, 3]".
std::string shape_text(std::span<const int64_t> shape);

}  // namespace mlaprefill
