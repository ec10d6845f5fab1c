// C structs to C++ ones. Every function names the field it refuses, below `where`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "c_api/abi.h"

namespace mlaprefill::c_api {

Status convert(std::string_view where, const mlaprefill_dims* from, MlaDims& to);
Status convert(std::string_view where, const mlaprefill_batch* from, RaggedBatch& to);
Status convert(std::string_view where, const mlaprefill_device_properties* from, DeviceProperties& to);
Status convert(std::string_view where, const mlaprefill_plan_bounds* from, PlanBounds& to);
Status convert(std::string_view where, const mlaprefill_plan_options* from, PlanOptions& to);

Status convert_dtype(std::string_view where, int32_t from, DType& to);
Status convert(std::string_view where, const mlaprefill_tensor& from, Tensor& to);
Status convert(std::string_view where, const mlaprefill_tensor& from, ConstTensor& to);
Status convert(std::string_view where, const mlaprefill_lse& from, LseView& to);
Status convert(std::string_view where, const mlaprefill_kv_cache& from, KvCache& to);

inline AttentionSpan converted(const mlaprefill_attention_span& span) {
  return {.q_row = span.q_row,
          .q_len = span.q_len,
          .k_row = span.k_row,
          .k_len = span.k_len,
          .causal_offset = span.causal_offset,
          .resume = span.resume != 0,
          .store_state = span.store_state != 0};
}

/// One a line.
std::string join_lines(const std::vector<std::string>& lines);

}  // namespace mlaprefill::c_api
