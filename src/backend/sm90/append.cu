// Latents of new tokens into the paged cache, quantised to its format. One warp a token.
#include "backend/sm90/grid.h"
#include "backend/sm90/latent_kernels.h"
#include "backend/sm90/latent_row.cuh"

namespace mlaprefill::sm90 {
namespace {

constexpr int kWarps = 8;
constexpr float kLargestE4M3 = 448.0f;
constexpr float kSmallestNormal = 1.17549435e-38f;

struct AppendParams {
  AppendLaunch args;
  bool aligned_latents;
  bool aligned_rope;
  bool aligned_cache;
};

__device__ __forceinline__ Chunk load_token(const AppendParams& params, int64_t token, int32_t column) {
  const AppendLaunch& args = params.args;
  if (column < args.latent_width) {
    return load_chunk(row_address(args.latents, token), args.latents.dtype, column, params.aligned_latents);
  }
  return load_chunk(row_address(args.rope, token), args.rope.dtype, column - args.latent_width,
                    params.aligned_rope);
}

__device__ __forceinline__ void divide_chunk(Chunk& chunk, float divisor) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i) chunk.value[i] = __fdiv_rn(chunk.value[i], divisor);
}

/// Scale of the group of 128 latents that 16 neighbouring lanes hold.
__device__ __forceinline__ float packed_group_scale(const Chunk& chunk) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) largest = fmaxf(largest, fabsf(chunk.value[i]));
#pragma unroll
  for (int step = kPackedGroup / kChunk / 2; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  }
  const float scale = __fdiv_rn(largest, kLargestE4M3);
  return scale >= kSmallestNormal ? scale : 1.0f;
}

__device__ void append_packed(const AppendParams& params, int64_t token, uint8_t* row, int32_t lane) {
  auto* scales = reinterpret_cast<float*>(row + kPackedScalesOffsetBytes);
  for (int32_t column = lane * kChunk; column < kPackedLatents; column += 32 * kChunk) {
    Chunk chunk = load_token(params, token, column);
    const float scale = packed_group_scale(chunk);
    divide_chunk(chunk, scale);
    store_chunk_as<__nv_fp8_storage_t>(row, column, chunk, params.aligned_cache);
    if (column % kPackedGroup == 0) scales[column / kPackedGroup] = scale;
  }
  if (lane * kChunk < kPackedRope) {
    const Chunk chunk = load_token(params, token, kPackedLatents + lane * kChunk);
    store_chunk_as<__nv_bfloat16>(row + kPackedRopeOffsetBytes, lane * kChunk, chunk, params.aligned_cache);
  }
}

__global__ void __launch_bounds__(32 * kWarps) append_kernel(const __grid_constant__ AppendParams params) {
  const AppendLaunch& args = params.args;
  const CacheView& cache = args.cache;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t width = args.latent_width + args.rope_width;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t token = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; token < args.tokens; token += warps) {
    const int64_t slot = args.slots[token];
    if (slot < 0 || slot >= cache.blocks * cache.block_size) continue;
    const int64_t block = slot / cache.block_size;
    const int64_t offset = block * cache.block_stride + (slot - block * cache.block_size) * cache.row_stride;
    if (cache.dtype == DType::kU8) {
      append_packed(params, token, static_cast<uint8_t*>(cache.data) + offset, lane);
      continue;
    }
    auto* row = static_cast<uint8_t*>(cache.data) + offset * element_bytes(cache.dtype);
    for (int32_t column = lane * kChunk; column < width; column += 32 * kChunk) {
      Chunk chunk = load_token(params, token, column);
      if (cache.dtype == DType::kF8E4M3) divide_chunk(chunk, cache.scale);
      store_chunk(row, cache.dtype, column, chunk, params.aligned_cache);
    }
  }
}

}  // namespace

cudaError_t launch_append(const AppendLaunch& args, int32_t processors, cudaStream_t stream) {
  const AppendParams params{args, aligned(args.latents), aligned(args.rope), aligned(args.cache)};
  append_kernel<<<grid_blocks(args.tokens, kWarps, processors), 32 * kWarps, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace mlaprefill::sm90
