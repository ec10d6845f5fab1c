// Addresses inside strided views, in 64-bit arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mlaprefill/tensor.h"

namespace mlaprefill {

/// Address of element (i, j, k) of a view of rank >= the number of indices given.
template <typename Pointer>
Pointer element_address(const BasicTensor<Pointer>& tensor, int64_t i, int64_t j = 0, int64_t k = 0) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
  const int64_t offset = i * tensor.stride[0] + j * tensor.stride[1] + k * tensor.stride[2];
  return static_cast<Byte*>(tensor.data) + offset * size_bytes(tensor.dtype);
}

/// Columns [begin, begin + count) of the last dimension.
template <typename Pointer>
BasicTensor<Pointer> slice_last(const BasicTensor<Pointer>& tensor, int64_t begin, int64_t count) {
  BasicTensor<Pointer> view = tensor;
  const auto last = static_cast<size_t>(tensor.rank - 1);
  if (tensor.data != nullptr) {
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
    view.data = static_cast<Byte*>(tensor.data) + begin * tensor.stride[last] * size_bytes(tensor.dtype);
  }
  view.shape[last] = count;
  return view;
}

/// Number of elements a view names.
template <typename Pointer>
int64_t num_elements(const BasicTensor<Pointer>& tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) count *= tensor.shape[static_cast<size_t>(i)];
  return count;
}

}  // namespace mlaprefill
