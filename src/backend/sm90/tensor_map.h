// Ragged TMA descriptors: one map serves every sequence of a packed [rows, heads, columns] tensor, and rows
// past the end of the sequence that is being read arrive as zeros.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/sm90/attention_launch.h"

namespace mlaprefill::sm90 {

/// A 16-bit tensor in device memory, 16-byte aligned, strides in elements and multiples of 8.
struct TensorMapSource {
  const void* data = nullptr;
  int64_t columns = 0;  ///< contiguous
  int64_t heads = 1;
  int64_t row_stride = 0;
  int64_t head_stride = 0;  ///< any multiple of 8 when heads is 1
};

/// The driver's encoder, looked up once; null when there is no usable driver.
using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);
TensorMapEncoder find_tensor_map_encoder();

/// Encodes a map whose boxes are 64 columns of one head x `box_rows` rows. Box coordinates: column, head,
/// 2^30 - length + row, first row + length, 2^30, where row counts within a sequence of `length` rows that
/// starts at `first row`. Returns false when the driver refuses or an argument breaks the rules above.
bool encode_ragged(TensorMapEncoder encoder, const TensorMapSource& source, Element element, int32_t box_rows,
                   CUtensorMap* map);

}  // namespace mlaprefill::sm90
