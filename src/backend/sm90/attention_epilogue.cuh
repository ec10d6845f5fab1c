// From accumulators to memory: normalised output and LSE, or the carried state, and the state's way back.
#pragma once

#include "backend/sm90/attention_load.cuh"
#include "backend/sm90/attention_mask.cuh"
#include "backend/sm90/attention_softmax.cuh"
#include "backend/sm90/attention_splits.cuh"
#include "backend/sm90/attention_traits.cuh"

namespace mlaprefill::sm90 {

/// Where a thread's two rows lie.
struct OutputRows {
  int32_t first;      ///< of the tensors' rows; the second is 8 further
  int32_t rows_left;  ///< row h is real iff 8 * h < rows_left
  int32_t head;

  __device__ bool has(int h) const { return 8 * h < rows_left; }
  __device__ int64_t row(int h) const { return int64_t{first} + 8 * h; }
};

__device__ __forceinline__ OutputRows output_rows(const AttentionParams& params, const WorkItem& item,
                                                  uint32_t rank, int32_t warpgroup) {
  const int32_t row = first_row(item, rank, warpgroup) + thread_row();
  const int32_t head = head_of(item, rank, warpgroup);
  return {item.q_row + row, head < params.num_heads ? item.q_rows - row : 0, min(head, params.num_heads - 1)};
}

template <class Traits>
__device__ __forceinline__ void load_state(const AttentionParams& params, const OutputRows& rows,
                                           float (&out)[Traits::kOut], RowState& state) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows.has(h)) continue;
    const int64_t row = rows.row(h);
    state.max[h] = params.state_max[rows.head * params.state_rows + row];
    state.sum[h] = params.state_sum[rows.head * params.state_rows + row];
    const float* source =
        params.state_out + (row * params.num_heads + rows.head) * Traits::kValue + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < Traits::kValue / 8; ++i) {
      const float2 pair = *reinterpret_cast<const float2*>(source + 8 * i);
      out[4 * i + 2 * h] = pair.x;
      out[4 * i + 2 * h + 1] = pair.y;
    }
  }
}

/// The state a thread's rows start from, `out` being zero. Rows past the entry start from +inf: but for
/// keys that are not finite they have no say in when their warp rescales.
template <class Traits>
__device__ __forceinline__ RowState start_rows(const AttentionParams& params, const WorkItem& item,
                                               const OutputRows& place, float (&out)[Traits::kOut]) {
  RowState rows{{place.has(0) ? -INFINITY : INFINITY, place.has(1) ? -INFINITY : INFINITY}, {0.0f, 0.0f}};
  if ((item.flags & AttentionEntry::kResume) != 0) load_state<Traits>(params, place, out, rows);
  return rows;
}

template <class Traits>
__device__ __forceinline__ void store_state(const AttentionParams& params, const OutputRows& rows,
                                            const float (&out)[Traits::kOut], const RowState& state) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows.has(h)) continue;
    const int64_t row = rows.row(h);
    if (lane % 4 == 0) {
      params.state_max[rows.head * params.state_rows + row] = state.max[h];
      params.state_sum[rows.head * params.state_rows + row] = state.sum[h];
    }
    float* target = params.state_out + (row * params.num_heads + rows.head) * Traits::kValue + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < Traits::kValue / 8; ++i) {
      *reinterpret_cast<float2*>(target + 8 * i) = make_float2(out[4 * i + 2 * h], out[4 * i + 2 * h + 1]);
    }
  }
}

/// Writes one row of float32 output, 8 bytes a thread.
template <class Traits>
__device__ __forceinline__ void store_row_f32(float* row, const float (&out)[Traits::kOut], int h,
                                              float factor) {
  float* target = row + 2 * (threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < Traits::kValue / 8; ++i) {
    *reinterpret_cast<float2*>(target + 8 * i) =
        make_float2(out[4 * i + 2 * h] * factor, out[4 * i + 2 * h + 1] * factor);
  }
}

/// Writes a warp's 16 rows of 16-bit output, 64 columns at a time, through its part of shared memory. The
/// first thread's row is that of the boxes.
template <class Traits>
__device__ __forceinline__ void store_rows_16(const CUtensorMap* map, const OutputRows& rows,
                                              uint32_t staging, const float (&out)[Traits::kOut],
                                              const float (&factor)[2]) {
  const uint32_t lane = thread_index() % 32;
  BoxPosition at{0, rows.head, kRaggedExtent - rows.rows_left, rows.first + rows.rows_left};
  const uint32_t row = staging + (lane % 16) * 128;
#pragma unroll
  for (int panel = 0; panel < Traits::kValuePanels; ++panel) {
    const float* values = &out[32 * panel];
    if (lane == 0) wait_stores_read();
    __syncwarp();
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float* x = values + 8 * i;
      store_matrix_x4(row + (((2 * i + lane / 16) ^ (lane % 8)) << 4),
                      pack<Traits::kElement>(x[0] * factor[0], x[1] * factor[0]),
                      pack<Traits::kElement>(x[2] * factor[1], x[3] * factor[1]),
                      pack<Traits::kElement>(x[4] * factor[0], x[5] * factor[0]),
                      pack<Traits::kElement>(x[6] * factor[1], x[7] * factor[1]));
    }
    fence_async_proxy();
    __syncwarp();
    at.column = panel * Traits::kPanel;
    if (lane == 0 && rows.has(0)) store_box(map, at, staging);
  }
}

/// LSE of a thread's two rows: -inf for a row without a visible key.
__device__ __forceinline__ void store_lse(const AttentionParams& params, const OutputRows& rows,
                                          const RowState& state) {
  if (params.lse == nullptr || threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows.has(h)) continue;
    const float natural =
        state.sum[h] == 0.0f ? -INFINITY : fmaf(log2_approximate(state.sum[h]), kLn2, state.max[h]);
    params.lse[rows.head * params.lse_head_stride + rows.row(h) * params.lse_row_stride] =
        natural * params.lse_unit;
  }
}

/// Zeroes the rows without a visible key, whatever their accumulators hold.
template <int kOut>
__device__ __forceinline__ void clear_empty_rows(float (&out)[kOut], const RowState& state) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (state.sum[h] != 0.0f) continue;
#pragma unroll
    for (int i = 0; i < kOut / 2; ++i) out[4 * (i / 2) + 2 * h + i % 2] = 0.0f;
  }
}

/// Normalises and writes a warp's rows.
template <class Traits>
__device__ __forceinline__ void store_output(const AttentionParams& params, SharedStorage<Traits>& shared,
                                             int32_t warpgroup, const OutputRows& rows,
                                             float (&out)[Traits::kOut], const RowState& state) {
  if (__any_sync(0xFFFFFFFF, state.sum[0] == 0.0f || state.sum[1] == 0.0f)) clear_empty_rows(out, state);
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) factor[h] = __fdividef(1.0f, state.sum[h] == 0.0f ? 1.0f : state.sum[h]);
  if (params.out_is_f32) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!rows.has(h)) continue;
      const int64_t offset = rows.row(h) * params.out_row_stride + rows.head * params.out_head_stride;
      store_row_f32<Traits>(static_cast<float*>(params.out) + offset, out, h, factor[h]);
    }
    return;
  }
  store_rows_16<Traits>(&params.out_map, rows,
                        shared_address(&shared.out[warpgroup][thread_index() / 32 % 4]), out, factor);
}

/// Writes what an item's rows have come to and lets go of the item.
template <class Traits>
__device__ __forceinline__ void finish_item(const AttentionParams& params, SharedStorage<Traits>& shared,
                                            const ItemSlot& slot, uint32_t rank, int32_t warpgroup,
                                            const OutputRows& place, float (&out)[Traits::kOut],
                                            RowState& state) {
  const bool carries = (slot.item.flags & AttentionEntry::kStoreState) != 0;
  bool ends = true;  // output and LSE are due; asked in one test, for two take 1 to 2 % longer on short rows
  if (slot.item.num_kv_splits() > 0 || carries) {
    const bool whole = slot.item.num_kv_splits() == 0 ||
                       merge_splits<Traits>(params, slot.item, rank, warpgroup, out, state);
    if (whole && carries) store_state<Traits>(params, place, out, state);
    ends = whole && !carries;
  }
  if (ends) {
    store_output(params, shared, warpgroup, place, out, state);
    store_lse(params, place, state);
  }
  __syncwarp();
  if (thread_index() % 32 == 0) free_item(slot);
}

}  // namespace mlaprefill::sm90
