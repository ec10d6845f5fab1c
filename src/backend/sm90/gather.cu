// Latents of one pass, from the paged cache and from the new tokens, into the workspace. One warp a row.
#include "backend/sm90/latent_kernels.h"
#include "backend/sm90/latent_row.cuh"

namespace mlaprefill::sm90 {
namespace {

constexpr int kWarps = 8;
constexpr int kBlocksPerProcessor = 8;
constexpr int kRowsPerStep = 4;  ///< consecutive rows of a warp, whose addresses are found side by side

struct GatherParams {
  GatherArgs args;
  bool aligned_latents;
  bool aligned_rope;
  bool aligned_cache;
};

enum class Source : int32_t { kNothing, kNewTokens, kCache, kBadBlock };

/// Where one row comes from: a row of the new tokens, or a row of the cache as block * block_size + offset.
struct RowSource {
  Source source = Source::kNothing;
  int64_t index = 0;
};

/// The last span that begins at or before the row holds it, if any does.
__device__ RowSource find_row(const GatherArgs& args, const MetadataHeader& header, int64_t row) {
  const auto* base = static_cast<const uint8_t*>(args.metadata);
  const auto& record = *reinterpret_cast<const PassRecord*>(base + pass_record_offset_bytes(args.pass));
  const auto* spans =
      reinterpret_cast<const GatherSpan*>(base + header.spans_offset_bytes) + record.span_begin;
  int32_t begin = 0;
  int32_t end = record.span_count;
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (spans[middle].row_begin <= row) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  if (begin == 0) return {};
  const GatherSpan span = spans[begin - 1];
  const int64_t offset = row - span.row_begin;
  if (offset >= span.rows) return {};
  const int64_t key = span.key_begin + offset;
  if (key >= span.context_len) return {Source::kNewTokens, span.first_new_row + key - span.context_len};
  const auto* blocks = reinterpret_cast<const int32_t*>(base + header.blocks_offset_bytes);
  const int64_t column = key / header.block_size;
  const int64_t block = blocks[span.block_begin + column];
  if (block < 0 || block >= args.cache.blocks) return {Source::kBadBlock, 0};
  return {Source::kCache, block * header.block_size + key - column * header.block_size};
}

__device__ __forceinline__ Chunk load_cached(const GatherParams& params, int64_t slot, int32_t column) {
  const CacheView& cache = params.args.cache;
  const int64_t block = slot / cache.block_size;
  const int64_t offset = block * cache.block_stride + (slot - block * cache.block_size) * cache.row_stride;
  if (cache.dtype == DType::kU8) {
    const auto* row = static_cast<const uint8_t*>(cache.data) + offset;
    if (column >= kPackedLatents) {
      return load_chunk_as<__nv_bfloat16>(row + kPackedRopeOffsetBytes, column - kPackedLatents,
                                          params.aligned_cache);
    }
    Chunk chunk = load_chunk_as<__nv_fp8_storage_t>(row, column, params.aligned_cache);
    const auto* scales = reinterpret_cast<const float*>(row + kPackedScalesOffsetBytes);
    scale_chunk(chunk, scales[column / kPackedGroup]);
    return chunk;
  }
  const auto* row = static_cast<const uint8_t*>(cache.data) + offset * element_bytes(cache.dtype);
  Chunk chunk = load_chunk(row, cache.dtype, column, params.aligned_cache);
  if (cache.dtype == DType::kF8E4M3) scale_chunk(chunk, cache.scale);
  return chunk;
}

__device__ __forceinline__ Chunk load_new(const GatherParams& params, int64_t row, int32_t column) {
  const GatherArgs& args = params.args;
  if (column < args.latent_width) {
    return load_chunk(row_address(args.new_latents, row), args.new_latents.dtype, column,
                      params.aligned_latents);
  }
  return load_chunk(row_address(args.new_rope, row), args.new_rope.dtype, column - args.latent_width,
                    params.aligned_rope);
}

__device__ __forceinline__ Chunk constant_chunk(float value) {
  Chunk chunk;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) chunk.value[i] = value;
  return chunk;
}

__global__ void __launch_bounds__(32 * kWarps) gather_kernel(const __grid_constant__ GatherParams params) {
  cudaGridDependencySynchronize();
  const GatherArgs& args = params.args;
  const auto& header = *static_cast<const MetadataHeader*>(args.metadata);
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t width = args.latent_width + args.rope_width;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  for (int64_t first = warp * kRowsPerStep; first < args.rows; first += warps * kRowsPerStep) {
    RowSource mine;
    if (lane < kRowsPerStep && first + lane < args.rows) mine = find_row(args, header, first + lane);
    for (int32_t i = 0; i < kRowsPerStep && first + i < args.rows; ++i) {
      const auto source = static_cast<Source>(__shfl_sync(~0u, static_cast<int32_t>(mine.source), i));
      const int64_t index = __shfl_sync(~0u, mine.index, i);
      auto* out = static_cast<uint8_t*>(args.out.data) + (first + i) * args.out.row_stride * 2;
#pragma unroll 3
      for (int32_t column = lane * kChunk; column < width; column += 32 * kChunk) {
        Chunk chunk;
        if (source == Source::kCache) {
          chunk = load_cached(params, index, column);
        } else if (source == Source::kNewTokens) {
          chunk = load_new(params, index, column);
        } else {
          chunk = constant_chunk(source == Source::kBadBlock ? __int_as_float(0x7fc00000) : 0.0f);
        }
        store_chunk(out, args.out.dtype, column, chunk, true);
      }
    }
  }
}

}  // namespace

cudaError_t launch_gather(const GatherArgs& args, int32_t processors, cudaStream_t stream) {
  const GatherParams params{args, aligned(args.new_latents), aligned(args.new_rope), aligned(args.cache)};
  const int64_t wanted = (args.rows + kWarps * kRowsPerStep - 1) / (kWarps * kRowsPerStep);
  const int64_t most = int64_t{processors} * kBlocksPerProcessor;
  const auto grid = static_cast<unsigned>(wanted < most ? wanted : most);
  // The kernel waits for its predecessors itself, which makes the launch cheaper for the host.
  cudaLaunchAttribute dependent;
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = 32 * kWarps;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, gather_kernel, params);
}

}  // namespace mlaprefill::sm90
