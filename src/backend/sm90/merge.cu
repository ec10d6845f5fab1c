// Merges n partial results, one warp for each (token, head).
#include "backend/sm90/grid.h"
#include "backend/sm90/latent_row.cuh"
#include "backend/sm90/merge.h"

namespace mlaprefill::sm90 {
namespace {

constexpr int kWarps = 8;
constexpr double kLn2 = 0.693147180559945309;
constexpr double kLog2e = 1.44269504088896341;

struct View {
  void* data;
  DType dtype;
  int64_t token_stride;
  int64_t head_stride;
  float* lse;
  int64_t lse_token_stride;
  int64_t lse_head_stride;
  bool lse_is_log2;
};

template <int kCapacity>
struct MergeParams {
  int64_t tokens;
  int64_t heads;
  int64_t dim;
  int32_t count;
  View out;
  View partial[kCapacity];
};

/// In double, so that large values in different bases keep their differences.
__device__ __forceinline__ double natural_lse(const View& view, int64_t token, int64_t head) {
  const float value = view.lse[head * view.lse_head_stride + token * view.lse_token_stride];
  if (value == INFINITY) return -INFINITY;
  return view.lse_is_log2 ? value * kLn2 : double{value};
}

__device__ __forceinline__ void* row_of(const View& view, int64_t token, int64_t head) {
  const int64_t element = token * view.token_stride + head * view.head_stride;
  return static_cast<uint8_t*>(view.data) + element * element_bytes(view.dtype);
}

/// A partial without keys is skipped whatever its output holds; NaN is kept. Every lane reads all it needs
/// before any lane writes, so a partial may be merged in place.
template <int kCapacity>
__device__ void merge_row(const MergeParams<kCapacity>& params, int64_t token, int64_t head, int32_t lane) {
  double largest = -INFINITY;
  for (int32_t i = 0; i < params.count; ++i) {
    largest = fmax(largest, natural_lse(params.partial[i], token, head));
  }
  float sum = 0.0f;
  for (int32_t i = 0; i < params.count; ++i) {
    const double lse = natural_lse(params.partial[i], token, head);
    if (lse != -INFINITY) sum += expf(static_cast<float>(lse - largest));
  }
  for (int64_t column = lane * kChunk; column < params.dim; column += 32 * kChunk) {
    Chunk merged = {};
    for (int32_t i = 0; i < params.count; ++i) {
      const View& partial = params.partial[i];
      const double lse = natural_lse(partial, token, head);
      if (lse == -INFINITY) continue;
      const float weight = expf(static_cast<float>(lse - largest)) / sum;
      const void* row = row_of(partial, token, head);
      const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
      const Chunk chunk = load_chunk(row, partial.dtype, static_cast<int32_t>(column), aligned);
#pragma unroll
      for (int k = 0; k < kChunk; ++k) merged.value[k] += weight * chunk.value[k];
    }
    void* row = row_of(params.out, token, head);
    const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
    store_chunk(row, params.out.dtype, static_cast<int32_t>(column), merged, aligned);
  }
  __syncwarp();
  if (lane == 0 && params.out.lse != nullptr) {
    const double lse = sum == 0.0f ? -INFINITY : largest + double{logf(sum)};
    params.out.lse[head * params.out.lse_head_stride + token * params.out.lse_token_stride] =
        static_cast<float>(params.out.lse_is_log2 ? lse * kLog2e : lse);
  }
}

template <int kCapacity>
__global__ void __launch_bounds__(32 * kWarps)
    merge_kernel(const __grid_constant__ MergeParams<kCapacity> params) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  const int64_t rows = params.tokens * params.heads;
  for (int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < rows; row += warps) {
    const int64_t token = row / params.heads;
    merge_row(params, token, row - token * params.heads, lane);
  }
}

View make_view(const ConstTensor& out, const ConstLseView& lse) {
  return {.data = const_cast<void*>(out.data),
          .dtype = out.dtype,
          .token_stride = out.stride[0],
          .head_stride = out.stride[1],
          .lse = const_cast<float*>(lse.data),
          .lse_token_stride = lse.token_stride,
          .lse_head_stride = lse.head_stride,
          .lse_is_log2 = lse.base == LseBase::kLog2};
}

template <int kCapacity>
cudaError_t launch(const MergeArgs& args, int32_t processors, cudaStream_t stream) {
  MergeParams<kCapacity> params;
  params.tokens = args.out.shape[0];
  params.heads = args.out.shape[1];
  params.dim = args.out.shape[2];
  params.count = static_cast<int32_t>(args.partials.size());
  params.out = make_view(args.out, args.lse);
  for (size_t i = 0; i < args.partials.size(); ++i) {
    params.partial[i] = make_view(args.partials[i].out, args.partials[i].lse);
  }
  const unsigned grid = grid_blocks(params.tokens * params.heads, kWarps, processors);
  merge_kernel<kCapacity><<<grid, 32 * kWarps, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_merge(const MergeArgs& args, int32_t processors, cudaStream_t stream) {
  constexpr int kFew = 8;
  if (args.partials.size() <= kFew) return launch<kFew>(args, processors, stream);
  return launch<kMaxPartials>(args, processors, stream);
}

}  // namespace mlaprefill::sm90
