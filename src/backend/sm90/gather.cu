// Latents of one pass, from the paged cache and from the new tokens, into the workspace. A warp moves a few
// consecutive rows at a time: it finds where they come from, then loads all of them before it stores any.
#include "backend/sm90/grid.h"
#include "backend/sm90/latent_kernels.h"
#include "backend/sm90/latent_row.cuh"

namespace mlaprefill::sm90 {
namespace {

constexpr int kWarps = 4;
constexpr int kRowsPerStep = 4;
constexpr int kInFlight = 9;  ///< chunks a lane holds: four rows of 576 elements are 9 x 32 chunks

struct GatherParams {
  GatherArgs args;
  bool aligned_latents;
  bool aligned_rope;
  bool aligned_cache;
};

enum class Source : int32_t { kNothing, kNewTokens, kCache, kBadBlock };

/// Where one row comes from. `rope` is set back by the latent width: column c of the row is at
/// (c < latent_width ? latents : rope) + c elements, in the packed row of the cache in elements of its rope.
struct RowSource {
  const uint8_t* latents = nullptr;
  const uint8_t* rope = nullptr;
  Source source = Source::kNothing;
};

/// The last span that begins at or before the row, -1 when there is none. Called by a whole warp.
__device__ int32_t find_span(const GatherSpan* spans, int32_t count, int64_t row, int32_t lane) {
  int32_t begin = 0;
  int32_t end = count;
  while (begin < end) {
    const int32_t step = (end - begin + 31) / 32;
    const int32_t probe = begin + (lane + 1) * step - 1;
    const bool before = probe < end && spans[probe].row_begin <= row;
    begin += __popc(__ballot_sync(~0u, before)) * step;
    end = min(end, begin + step - 1);
  }
  return begin - 1;
}

__device__ RowSource cached_row(const GatherParams& params, const MetadataHeader& header,
                                const GatherSpan& span, uint32_t key) {
  const CacheView& cache = params.args.cache;
  const auto* blocks = reinterpret_cast<const int32_t*>(static_cast<const uint8_t*>(params.args.metadata) +
                                                        header.blocks_offset_bytes);
  const auto block_size = static_cast<uint32_t>(header.block_size);
  const uint32_t column = key / block_size;
  const int64_t block = blocks[span.block_begin + column];
  if (block < 0 || block >= cache.blocks) return {nullptr, nullptr, Source::kBadBlock};
  const int64_t offset = block * cache.block_stride + (key - column * block_size) * cache.row_stride;
  const auto* row = static_cast<const uint8_t*>(cache.data) + offset * element_bytes(cache.dtype);
  const uint8_t* rope = row;
  if (cache.dtype == DType::kU8) rope = row + kPackedRopeOffsetBytes - 2 * kPackedLatents;
  return {row, rope, Source::kCache};
}

/// `index`: the last span that begins at or before `row`, or one before it.
__device__ RowSource find_row(const GatherParams& params, const MetadataHeader& header,
                              const GatherSpan* spans, int32_t count, int32_t index, int64_t row) {
  while (index + 1 < count && spans[index + 1].row_begin <= row) ++index;
  if (index < 0) return {};
  const GatherSpan span = spans[index];
  const int64_t offset = row - span.row_begin;
  if (offset >= span.rows) return {};
  const int64_t key = span.key_begin + offset;
  if (key < span.context_len) return cached_row(params, header, span, static_cast<uint32_t>(key));
  const GatherArgs& args = params.args;
  const int64_t token = span.first_new_row + key - span.context_len;
  const auto* rope = static_cast<const uint8_t*>(row_address(args.new_rope, token));
  return {static_cast<const uint8_t*>(row_address(args.new_latents, token)),
          rope - args.latent_width * element_bytes(args.new_rope.dtype), Source::kNewTokens};
}

/// Whether the row's 16-byte chunks can be copied as they are. A row of nothing can: it becomes zeros.
__device__ bool is_plain(const GatherParams& params, Source source) {
  const GatherArgs& args = params.args;
  switch (source) {
    case Source::kNothing:
      return true;
    case Source::kNewTokens:
      return params.aligned_latents && params.aligned_rope && args.new_latents.dtype == args.out.dtype;
    case Source::kCache:
      return params.aligned_cache && args.cache.dtype == args.out.dtype;
    default:
      return false;
  }
}

/// Walks the chunks of consecutive rows, 32 at a time.
struct ChunkWalk {
  int32_t row = 0;
  int32_t chunk = 0;
  int32_t chunks_per_row;

  __device__ ChunkWalk(int32_t lane, int32_t chunks_per_row_) : chunks_per_row(chunks_per_row_) {
    advance(lane);
  }
  __device__ void advance(int32_t count = 32) {
    chunk += count;
    while (chunk >= chunks_per_row) {
      chunk -= chunks_per_row;
      ++row;
    }
  }
};

__device__ void copy_rows(const GatherArgs& args, const RowSource* sources, int32_t rows, uint8_t* out,
                          int32_t lane) {
  constexpr int32_t kChunkBytes = 2 * kChunk;
  const int64_t row_bytes = args.out.row_stride * 2;
  ChunkWalk load(lane, (args.latent_width + args.rope_width) / kChunk);
  ChunkWalk store = load;
  while (store.row < rows) {
    uint4 held[kInFlight];
#pragma unroll
    for (uint4& chunk : held) {
      chunk = {};
      if (load.row < rows) {
        const RowSource& source = sources[load.row];
        const uint8_t* base = load.chunk * kChunk < args.latent_width ? source.latents : source.rope;
        if (base != nullptr) chunk = *reinterpret_cast<const uint4*>(base + load.chunk * kChunkBytes);
      }
      load.advance();
    }
#pragma unroll
    for (const uint4& chunk : held) {
      if (store.row < rows) {
        *reinterpret_cast<uint4*>(out + store.row * row_bytes + store.chunk * kChunkBytes) = chunk;
      }
      store.advance();
    }
  }
}

__device__ Chunk load_converted(const GatherParams& params, const RowSource& source, int32_t column) {
  const GatherArgs& args = params.args;
  if (source.latents == nullptr) {
    const float value = source.source == Source::kBadBlock ? __int_as_float(0x7fc00000) : 0.0f;
    Chunk chunk;
#pragma unroll
    for (float& element : chunk.value) element = value;
    return chunk;
  }
  const bool is_rope = column >= args.latent_width;
  const uint8_t* row = is_rope ? source.rope : source.latents;
  if (source.source == Source::kNewTokens) {
    return load_chunk(row, args.new_latents.dtype, column,
                      is_rope ? params.aligned_rope : params.aligned_latents);
  }
  const CacheView& cache = args.cache;
  if (cache.dtype != DType::kU8) {
    Chunk chunk = load_chunk(row, cache.dtype, column, params.aligned_cache);
    if (cache.dtype == DType::kF8E4M3) scale_chunk(chunk, cache.scale);
    return chunk;
  }
  if (is_rope) return load_chunk_as<__nv_bfloat16>(row, column, params.aligned_cache);
  Chunk chunk = load_chunk_as<__nv_fp8_storage_t>(row, column, params.aligned_cache);
  scale_chunk(chunk, reinterpret_cast<const float*>(row + kPackedScalesOffsetBytes)[column / kPackedGroup]);
  return chunk;
}

__device__ void convert_rows(const GatherParams& params, const RowSource* sources, int32_t rows, uint8_t* out,
                             int32_t lane) {
  const GatherArgs& args = params.args;
  ChunkWalk walk(lane, (args.latent_width + args.rope_width) / kChunk);
#pragma unroll 3
  for (; walk.row < rows; walk.advance()) {
    const Chunk chunk = load_converted(params, sources[walk.row], walk.chunk * kChunk);
    store_chunk(out + walk.row * args.out.row_stride * 2, args.out.dtype, walk.chunk * kChunk, chunk, true);
  }
}

__global__ void __launch_bounds__(32 * kWarps) gather_kernel(const __grid_constant__ GatherParams params) {
  __shared__ RowSource shared[kWarps][kRowsPerStep];
  cudaGridDependencySynchronize();
  const GatherArgs& args = params.args;
  const auto* metadata = static_cast<const uint8_t*>(args.metadata);
  const auto& record = *reinterpret_cast<const PassRecord*>(metadata + pass_record_offset_bytes(args.pass));
  const auto& header = *reinterpret_cast<const MetadataHeader*>(metadata);
  const int32_t count = record.span_count;
  const auto* spans =
      reinterpret_cast<const GatherSpan*>(metadata + header.spans_offset_bytes) + record.span_begin;

  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  RowSource* sources = shared[threadIdx.x / 32];
  const int64_t stride = int64_t{gridDim.x} * kWarps * kRowsPerStep;
  const int64_t begin = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kRowsPerStep;
  for (int64_t first = begin; first < args.rows; first += stride) {
    const auto rows = static_cast<int32_t>(min(int64_t{kRowsPerStep}, args.rows - first));
    const int32_t span = find_span(spans, count, first, lane);
    bool plain = true;
    if (lane < rows) {
      sources[lane] = find_row(params, header, spans, count, span, first + lane);
      plain = is_plain(params, sources[lane].source);
    }
    __syncwarp();
    auto* out = static_cast<uint8_t*>(args.out.data) + first * args.out.row_stride * 2;
    if (__all_sync(~0u, plain)) {
      copy_rows(args, sources, rows, out, lane);
    } else {
      convert_rows(params, sources, rows, out, lane);
    }
    __syncwarp();
  }
}

}  // namespace

cudaError_t launch_gather(const GatherArgs& args, int32_t processors, cudaStream_t stream) {
  const GatherParams params{args, aligned(args.new_latents), aligned(args.new_rope), aligned(args.cache)};
  // The kernel waits for its predecessors itself, which makes the launch cheaper for the host.
  cudaLaunchAttribute dependent;
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid_blocks(args.rows, kWarps * kRowsPerStep, processors);
  config.blockDim = 32 * kWarps;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, gather_kernel, params);
}

}  // namespace mlaprefill::sm90
