// Eight neighbouring elements of a latent row, in any storage format, as float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "backend/sm90/latent_kernels.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill::sm90 {

inline constexpr int kChunk = 8;  ///< elements a lane handles at once

/// The packed row of a u8 cache: 512 e4m3, 4 float32 scales of 128 each, 64 bf16 rope.
inline constexpr int kPackedLatents = 512;
inline constexpr int kPackedGroup = 128;
inline constexpr int kPackedScalesOffsetBytes = kPackedLatents;
inline constexpr int kPackedRopeOffsetBytes = kPackedScalesOffsetBytes + 4 * (kPackedLatents / kPackedGroup);
inline constexpr int kPackedRope = 64;

struct Chunk {
  float value[kChunk];
};

template <typename T>
__device__ __forceinline__ float to_float(T value) {
  return static_cast<float>(value);
}
template <>
__device__ __forceinline__ float to_float(__nv_fp8_storage_t value) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(value, __NV_E4M3)));
}

template <typename T>
__device__ __forceinline__ T from_float(float value) {
  return static_cast<T>(value);
}
template <>
__device__ __forceinline__ __nv_fp8_storage_t from_float(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

/// One access of a chunk when `aligned`, else one for each element.
template <typename T>
__device__ __forceinline__ Chunk load_chunk_as(const void* row, int32_t column, bool aligned) {
  struct alignas(sizeof(T) * kChunk > 16 ? 16 : sizeof(T) * kChunk) Vector {
    T element[kChunk];
  };
  const T* source = static_cast<const T*>(row) + column;
  Vector vector;
  if (aligned) {
    vector = *reinterpret_cast<const Vector*>(source);
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) vector.element[i] = source[i];
  }
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) chunk.value[i] = to_float(vector.element[i]);
  return chunk;
}

template <typename T>
__device__ __forceinline__ void store_chunk_as(void* row, int32_t column, const Chunk& chunk, bool aligned) {
  struct alignas(sizeof(T) * kChunk > 16 ? 16 : sizeof(T) * kChunk) Vector {
    T element[kChunk];
  };
  Vector vector;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) vector.element[i] = from_float<T>(chunk.value[i]);
  T* target = static_cast<T*>(row) + column;
  if (aligned) {
    *reinterpret_cast<Vector*>(target) = vector;
  } else {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) target[i] = vector.element[i];
  }
}

__device__ __forceinline__ Chunk load_chunk(const void* row, DType dtype, int32_t column, bool aligned) {
  switch (dtype) {
    case DType::kBF16:
      return load_chunk_as<__nv_bfloat16>(row, column, aligned);
    case DType::kF16:
      return load_chunk_as<__half>(row, column, aligned);
    case DType::kF8E4M3:
      return load_chunk_as<__nv_fp8_storage_t>(row, column, aligned);
    default:
      return load_chunk_as<float>(row, column, aligned);
  }
}

__device__ __forceinline__ void store_chunk(void* row, DType dtype, int32_t column, const Chunk& chunk,
                                            bool aligned) {
  switch (dtype) {
    case DType::kBF16:
      return store_chunk_as<__nv_bfloat16>(row, column, chunk, aligned);
    case DType::kF16:
      return store_chunk_as<__half>(row, column, chunk, aligned);
    case DType::kF8E4M3:
      return store_chunk_as<__nv_fp8_storage_t>(row, column, chunk, aligned);
    default:
      return store_chunk_as<float>(row, column, chunk, aligned);
  }
}

__host__ __device__ __forceinline__ int64_t element_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : dtype == DType::kBF16 || dtype == DType::kF16 ? 2 : 1;
}

__device__ __forceinline__ const void* row_address(const RowView& view, int64_t row) {
  return static_cast<const uint8_t*>(view.data) + row * view.row_stride * element_bytes(view.dtype);
}

/// Whether every row starts at a multiple of 16 bytes, so that a chunk is one access.
inline bool aligned(const RowView& view) {
  const int64_t stride_bytes = view.row_stride * element_bytes(view.dtype);
  return reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && stride_bytes % 16 == 0;
}
inline bool aligned(const CacheView& cache) {
  return aligned(RowView{cache.data, cache.dtype, cache.row_stride}) &&
         cache.block_stride * element_bytes(cache.dtype) % 16 == 0;
}

__device__ __forceinline__ void scale_chunk(Chunk& chunk, float factor) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) chunk.value[i] *= factor;
}

}  // namespace mlaprefill::sm90
