#include "backend/check_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "core/error.h"
#include "core/tensor_access.h"

namespace mlaprefill {
namespace {

// Largest byte offset a view may reach: leaves room for one more addition in 64 bits.
constexpr int64_t kMaxOffsetBytes = int64_t{1} << 61;

std::string wanted_text(std::initializer_list<int64_t> shape) {
  std::string text = "[";
  for (int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += extent < 0 ? "any" : fmt::format("{}", extent);
  }
  return text + "]";
}

Status check_reach(std::string_view where, const ConstTensor& tensor) {
  int64_t reach = 0;
  for (size_t i = 0; i < static_cast<size_t>(tensor.rank); ++i) {
    int64_t step = 0;
    const int64_t last_index = std::max<int64_t>(tensor.shape[i] - 1, 0);
    if (__builtin_mul_overflow(last_index, tensor.stride[i], &step) ||
        __builtin_add_overflow(reach, step, &reach) || reach > kMaxOffsetBytes / size_bytes(tensor.dtype)) {
      return error(StatusCode::kLimitExceeded, "{}: must span at most {} bytes, got shape {} with strides {}",
                   where, kMaxOffsetBytes, shape_text(tensor),
                   std::span(tensor.stride).first(static_cast<size_t>(tensor.rank)));
    }
  }
  return {};
}

}  // namespace

std::string shape_text(const ConstTensor& tensor) {
  return fmt::format("{}", std::span(tensor.shape).first(static_cast<size_t>(tensor.rank)));
}

bool is_working_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

Status check_tensor(std::string_view where, const ConstTensor& tensor, std::initializer_list<int64_t> shape) {
  if (tensor.rank != static_cast<int32_t>(shape.size())) {
    return invalid("{}: must have rank {}, got {}", where, shape.size(), tensor.rank);
  }
  size_t i = 0;
  for (int64_t extent : shape) {
    if (tensor.shape[i] < 0 || (extent >= 0 && tensor.shape[i] != extent)) {
      return invalid("{}: must have shape {}, got {}", where, wanted_text(shape), shape_text(tensor));
    }
    if (tensor.stride[i] < 0) {
      return invalid("{}: strides must be >= 0, got stride[{}] = {}", where, i, tensor.stride[i]);
    }
    ++i;
  }
  if (tensor.stride[i - 1] != 1) {
    return error(StatusCode::kUnsupported, "{}: last stride must be 1, got {}", where, tensor.stride[i - 1]);
  }
  MLAPREFILL_RETURN_IF_ERROR(check_reach(where, tensor));
  if (num_elements(tensor) == 0) return {};
  if (tensor.data == nullptr) {
    return invalid("{}: data must not be null, got null for shape {}", where, shape_text(tensor));
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if (address % static_cast<uintptr_t>(size_bytes(tensor.dtype)) != 0) {
    return invalid("{}: data must be aligned to {} bytes, got address {:#x}", where, size_bytes(tensor.dtype),
                   address);
  }
  return {};
}

Status check_output(std::string_view where, const ConstTensor& tensor, std::initializer_list<int64_t> shape) {
  MLAPREFILL_RETURN_IF_ERROR(check_tensor(where, tensor, shape));
  if (num_elements(tensor) == 0) return {};
  // Every axis must step over all that the axes of smaller (or, for a lower index, equal) stride reach.
  const auto rank = static_cast<size_t>(tensor.rank);
  for (size_t i = 0; i < rank; ++i) {
    if (tensor.shape[i] == 1) continue;
    int64_t reach = 0;
    for (size_t j = 0; j < rank; ++j) {
      const bool inside =
          tensor.stride[j] < tensor.stride[i] || (tensor.stride[j] == tensor.stride[i] && j > i);
      if (inside) reach += tensor.stride[j] * (tensor.shape[j] - 1);
    }
    if (tensor.stride[i] <= reach) {
      return invalid("{}: elements must not share addresses, got shape {} with strides {}", where,
                     shape_text(tensor), std::span(tensor.stride).first(rank));
    }
  }
  return {};
}

Status check_lse(std::string_view where, const ConstLseView& lse, int64_t heads, int64_t tokens) {
  if (lse.data == nullptr) return {};
  ConstTensor view(lse.data, DType::kF32, {heads, tokens, 1}, {lse.head_stride, lse.token_stride, 1});
  return check_output(where, view, {heads, tokens, 1});
}

Status check_working_dtype(std::string_view where, DType dtype) {
  if (is_working_dtype(dtype)) return {};
  return error(StatusCode::kUnsupported, "{}: dtype must be bf16, f16 or f32, got {}", where,
               to_string(dtype));
}

Status check_output_dtype(std::string_view where, DType output, std::string_view input_name, DType input) {
  if (output == input || output == DType::kF32) return {};
  return error(StatusCode::kUnsupported, "{}: dtype must be that of {} ({}) or f32, got {}", where,
               input_name, to_string(input), to_string(output));
}

}  // namespace mlaprefill
