// Checks of one tensor view, shared by the validation of every call.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "mlaprefill/status.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill {

/// "[3, 16, 128]".
std::string shape_text(const ConstTensor& tensor);

/// f32, f16 or bf16.
bool is_working_dtype(DType dtype);

/// The view has exactly `shape` (-1: any extent), last stride 1, strides that address inside 64 bits, and
/// memory aligned to its dtype unless it is empty.
Status check_tensor(std::string_view where, const ConstTensor& tensor, std::initializer_list<int64_t> shape);

/// check_tensor, and no two elements share an address.
Status check_output(std::string_view where, const ConstTensor& tensor, std::initializer_list<int64_t> shape);

/// Strides of a wanted LSE name a different element for each (head, token).
Status check_lse(std::string_view where, const ConstLseView& lse, int64_t heads, int64_t tokens);

/// `dtype` is f32, f16 or bf16.
Status check_working_dtype(std::string_view where, DType dtype);

/// `output` is `input` or float32.
Status check_output_dtype(std::string_view where, DType output, std::string_view input_name, DType input);

}  // namespace mlaprefill
