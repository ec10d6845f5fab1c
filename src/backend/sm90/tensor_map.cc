#include "backend/sm90/tensor_map.h"

#include <cuda_runtime_api.h>

namespace mlaprefill::sm90 {

TensorMapEncoder find_tensor_map_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<TensorMapEncoder>(entry);
}

// The address of a box is base + head * head_bytes + (d + e) * row_bytes + 2^30 * (2^35 - row_bytes) with
// d = 2^30 - length + row and e = first + length. Modulo 2^64 that is base + (first + row) * row_bytes: the
// last dimension takes the 2^30 rows back. The bound of d, 2^30, falls exactly at row = length.
bool encode_ragged(TensorMapEncoder encoder, const TensorMapSource& source, Element element, int32_t box_rows,
                   CUtensorMap* map) {
  constexpr uint64_t kExtent = uint64_t{1} << 30;
  constexpr uint64_t kUnbounded = 0x7FFF0000;
  constexpr int64_t kElementBytes = 2;
  constexpr uint64_t kWrap = uint64_t{1} << 35;
  const auto address = reinterpret_cast<uintptr_t>(source.data);
  if (encoder == nullptr || source.data == nullptr || address % 16 != 0) return false;
  if (source.row_stride <= 0 || source.row_stride % 8 != 0 || source.row_stride >= (int64_t{1} << 34))
    return false;
  if (source.head_stride < 0 || source.head_stride % 8 != 0) return false;
  if (source.heads > 1 && source.head_stride == 0) return false;

  const auto row_bytes = static_cast<uint64_t>(source.row_stride * kElementBytes);
  const auto head_bytes =
      source.heads > 1 ? static_cast<uint64_t>(source.head_stride * kElementBytes) : row_bytes;
  const cuuint64_t extents[5] = {static_cast<cuuint64_t>(source.columns),
                                 static_cast<cuuint64_t>(source.heads), kExtent, kUnbounded, kUnbounded};
  const cuuint64_t strides[4] = {head_bytes, row_bytes, row_bytes, kWrap - row_bytes};
  const cuuint32_t box[5] = {64, 1, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUtensorMapDataType type =
      element == Element::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return encoder(map, type, 5, const_cast<void*>(source.data), extents, strides, box, steps,
                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace mlaprefill::sm90
