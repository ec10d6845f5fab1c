#include "io/owned_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace mlaprefill {

Result<OwnedTensor> OwnedTensor::allocate(DType dtype, std::span<const int64_t> shape) {
  OwnedTensor tensor;
  if (shape.size() > tensor.view.shape.size()) {
    return invalid("shape: must have at most {} dimensions, got {}", tensor.view.shape.size(), shape.size());
  }
  tensor.view.dtype = dtype;
  tensor.view.rank = static_cast<int32_t>(shape.size());
  // `step` skips empty dimensions, so that no stride overflows even where the tensor itself holds nothing.
  int64_t step = 1;
  bool empty = false;
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] < 0) return invalid("shape[{}]: must be >= 0, got {}", axis, shape[axis]);
    tensor.view.shape[axis] = shape[axis];
    tensor.view.stride[axis] = step;
    empty = empty || shape[axis] == 0;
    if (__builtin_mul_overflow(step, std::max<int64_t>(shape[axis], 1), &step)) {
      return error(StatusCode::kLimitExceeded, "shape: product must fit 64 bits, got {}", shape_text(shape));
    }
  }
  int64_t size = 0;
  if (__builtin_mul_overflow(empty ? 0 : step, mlaprefill::size_bytes(dtype), &size)) {
    return error(StatusCode::kLimitExceeded, "shape: size in bytes must fit 64 bits, got {}",
                 shape_text(shape));
  }
  auto memory = Buffer::allocate(size);
  if (!memory.ok()) return memory.status();
  tensor.memory = std::move(memory).value();
  tensor.view.data = tensor.memory.data();
  return tensor;
}

int64_t OwnedTensor::elements() const { return memory.size_bytes() / mlaprefill::size_bytes(view.dtype); }

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace mlaprefill
