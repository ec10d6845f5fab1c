// Merging of an item's splits: each warp leaves what its rows have come to over its keys, and of the warps
// with the same rows the last one adds all of it up, in the order of the keys.
#pragma once

#include "backend/sm90/attention_load.cuh"
#include "backend/sm90/attention_softmax.cuh"
#include "backend/sm90/attention_traits.cuh"
#include "plan/kv_splits.h"

namespace mlaprefill::sm90 {

/// The partial results of one warp's rows in all splits of an item.
template <class Traits>
class WarpPartials {
 public:
  __device__ WarpPartials(const AttentionParams& params, const WorkItem& item, uint32_t rank,
                          int32_t warpgroup) {
    const int32_t warp = static_cast<int32_t>((thread_index() / 32) % 4);
    const int32_t blocks_per_head = 4 >> static_cast<int32_t>(item.row_split());
    const int32_t block = (head_of(item, rank, warpgroup) - item.head) * blocks_per_head +
                          first_row(item, rank, warpgroup) / kRowsPerWarpgroup;
    first_ = params.partials + ((item.first_partial() * 4 + block) * 4 + warp) * (kQuads * 32) +
             static_cast<int32_t>(thread_index() % 32);
    arrivals_ = params.arrivals + item.first_partial() / 2 * 4 + block;
    shift_ = 8 * warp;
  }

  __device__ void store(int32_t split, const float (&out)[Traits::kOut], const RowState& rows) const {
    float4* to = first_ + split * kSplitQuads;
#pragma unroll
    for (int i = 0; i < kQuads - 1; ++i) {
      to[32 * i] = make_float4(out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
    }
    to[32 * (kQuads - 1)] = make_float4(rows.max[0], rows.max[1], rows.sum[0], rows.sum[1]);
  }

  /// Whether the other splits had arrived before this one, and may be read; the whole warp calls it after
  /// store().
  __device__ bool arrive_last(uint32_t splits) const {
    bool last = false;
    __syncwarp();
    if (thread_index() % 32 == 0) {
      __threadfence();
      last = (atomicAdd(arrivals_, 1u << shift_) >> shift_ & 255) == splits - 1;
      if (last) atomicSub(arrivals_, splits << shift_);
      __threadfence();
    }
    __syncwarp();
    return __shfl_sync(0xFFFFFFFF, last, 0);
  }

  /// Adds up all splits; `out` and `rows` need not hold anything.
  __device__ void merge(int32_t splits, float (&out)[Traits::kOut], RowState& rows) const {
    rows = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll 4
    for (int32_t split = 0; split < splits; ++split) {
      const float4 state = __ldcg(first_ + split * kSplitQuads + 32 * (kQuads - 1));
      rows.max[0] = fmaxf(rows.max[0], state.x);
      rows.max[1] = fmaxf(rows.max[1], state.y);
    }
    clear(out);
#pragma unroll 1
    for (int32_t split = 0; split < splits; ++split) {
      const float4* from = first_ + split * kSplitQuads;
      const float4 state = __ldcg(from + 32 * (kQuads - 1));
      const float factor[2] = {weight(state.x, rows.max[0]), weight(state.y, rows.max[1])};
      rows.sum[0] = fmaf(state.z, factor[0], rows.sum[0]);
      rows.sum[1] = fmaf(state.w, factor[1], rows.sum[1]);
#pragma unroll
      for (int i = 0; i < kQuads - 1; ++i) {
        const float4 quad = __ldcg(from + 32 * i);
        out[4 * i] = fmaf(quad.x, factor[0], out[4 * i]);
        out[4 * i + 1] = fmaf(quad.y, factor[0], out[4 * i + 1]);
        out[4 * i + 2] = fmaf(quad.z, factor[1], out[4 * i + 2]);
        out[4 * i + 3] = fmaf(quad.w, factor[1], out[4 * i + 3]);
      }
    }
  }

 private:
  static constexpr int kQuads = Traits::kOut / 4 + 1;
  static constexpr int kSplitQuads = 16 * 32 * kQuads;
  static_assert(kSplitQuads * int64_t{sizeof(float4)} ==
                kMaxEntryRows * partial_row_words(Traits::kValue) * int64_t{sizeof(float)});

  __device__ static float weight(float max, float top) {
    return exp2_approximate((max - (top == -INFINITY ? 0.0f : top)) * kLog2E);
  }

  float4* first_;
  uint32_t* arrivals_;
  int32_t shift_;
};

/// Leaves the warp's rows of a split behind. Returns whether it was the last: `out` and `rows` are then those
/// over the keys of all splits.
template <class Traits>
__device__ __forceinline__ bool merge_splits(const AttentionParams& params, const WorkItem& item,
                                             uint32_t rank, int32_t warpgroup, float (&out)[Traits::kOut],
                                             RowState& rows) {
  const WarpPartials<Traits> partials(params, item, rank, warpgroup);
  partials.store(item.kv_split_index(), out, rows);
  if (!partials.arrive_last(static_cast<uint32_t>(item.num_kv_splits()))) return false;
  partials.merge(item.num_kv_splits(), out, rows);
  return true;
}

}  // namespace mlaprefill::sm90
