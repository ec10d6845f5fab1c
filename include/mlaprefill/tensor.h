// Dtypes and non-owning tensor views. Strides are in elements; memory belongs to the caller.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace mlaprefill {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kU8, kI32, kI64 };

/// Bytes of one element.
int64_t size_bytes(DType dtype);
/// Lower-case name, e.g. "bf16".
std::string_view to_string(DType dtype);

/// A strided view of up to 4 dimensions. `Pointer` is `void*` or `const void*`.
/// On a CPU backend `data` is host memory, on a CUDA backend device memory.
template <typename Pointer>
struct BasicTensor {
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  int32_t rank = 0;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> stride{};

  BasicTensor() = default;

  /// Row-major contiguous view.
  BasicTensor(Pointer data_, DType dtype_, std::initializer_list<int64_t> shape_)
      : data(data_), dtype(dtype_), rank(static_cast<int32_t>(shape_.size())) {
    int32_t i = 0;
    for (int64_t extent : shape_) shape[static_cast<size_t>(i++)] = extent;
    int64_t step = 1;
    for (i = rank - 1; i >= 0; --i) {
      stride[static_cast<size_t>(i)] = step;
      step *= shape[static_cast<size_t>(i)];
    }
  }

  /// View with explicit strides, in elements.
  BasicTensor(Pointer data_, DType dtype_, std::initializer_list<int64_t> shape_,
              std::initializer_list<int64_t> stride_)
      : BasicTensor(data_, dtype_, shape_) {
    int32_t i = 0;
    for (int64_t step : stride_) stride[static_cast<size_t>(i++)] = step;
  }

  /// A mutable view converts to a read-only one.
  operator BasicTensor<const void*>() const {
    BasicTensor<const void*> view;
    view.data = data;
    view.dtype = dtype;
    view.rank = rank;
    view.shape = shape;
    view.stride = stride;
    return view;
  }

  bool present() const { return rank > 0; }
};

using Tensor = BasicTensor<void*>;
using ConstTensor = BasicTensor<const void*>;

/// Base of the logarithm an LSE is expressed in. The natural one is canonical.
enum class LseBase : uint8_t { kNatural, kLog2 };

/// float32 log-sum-exp of the *scaled* logits, addressed as data[head * head_stride + token * token_stride].
/// Canonical shape is [num_heads, total_q_tokens] (head_stride = total_q_tokens, token_stride = 1); `[T, H]`
/// consumers set head_stride = 1, token_stride = num_heads. data == nullptr: not wanted.
template <typename FloatPointer>
struct BasicLse {
  FloatPointer data = nullptr;
  int64_t head_stride = 0;
  int64_t token_stride = 1;
  LseBase base = LseBase::kNatural;

  operator BasicLse<const float*>() const { return {data, head_stride, token_stride, base}; }
};

using LseView = BasicLse<float*>;
using ConstLseView = BasicLse<const float*>;

}  // namespace mlaprefill
