// From accumulators to memory: normalised output and LSE, or the carried state, and the state's way back.
#pragma once

#include "backend/sm90/attention_load.cuh"
#include "backend/sm90/attention_mask.cuh"
#include "backend/sm90/attention_softmax.cuh"
#include "backend/sm90/attention_traits.cuh"

namespace mlaprefill::sm90 {

/// Where a thread's two rows lie.
struct OutputRows {
  int64_t row;        ///< of the tensors, the first; the second is 8 further
  int32_t rows_left;  ///< row h is real iff 8 * h < rows_left
  int32_t head;

  __device__ bool has(int h) const { return 8 * h < rows_left; }
};

__device__ __forceinline__ OutputRows output_rows(const AttentionParams& params, const WorkItem& item,
                                                  uint32_t rank, int32_t warpgroup) {
  const int32_t row = first_row(item.split(), rank, warpgroup) + thread_row();
  const int32_t head = head_of(item, rank, warpgroup);
  if (head >= params.num_heads) return {0, 0, params.num_heads - 1};
  return {int64_t{item.q_row} + row, item.q_rows - row, head};
}

template <class Traits>
__device__ __forceinline__ void load_state(const AttentionParams& params, const OutputRows& rows,
                                           float (&out)[Traits::kOutChunks][64], RowState& state) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows.has(h)) continue;
    const int64_t row = rows.row + 8 * h;
    state.max[h] = params.state_max[rows.head * params.state_rows + row];
    state.sum[h] = params.state_sum[rows.head * params.state_rows + row];
    const float* source =
        params.state_out + (row * params.num_heads + rows.head) * Traits::kValue + 2 * (lane % 4);
#pragma unroll
    for (int chunk = 0; chunk < Traits::kOutChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float2 pair = *reinterpret_cast<const float2*>(source + chunk * 128 + 8 * i);
        out[chunk][4 * i + 2 * h] = pair.x;
        out[chunk][4 * i + 2 * h + 1] = pair.y;
      }
    }
  }
}

/// The state a thread's rows start from, `out` being zero. Rows past the entry start from +inf: they never
/// outgrow it and so never have a say in when their warp rescales.
template <class Traits>
__device__ __forceinline__ RowState start_rows(const AttentionParams& params, const WorkItem& item,
                                               uint32_t rank, int32_t warpgroup,
                                               float (&out)[Traits::kOutChunks][64]) {
  const OutputRows place = output_rows(params, item, rank, warpgroup);
  RowState rows{{place.has(0) ? -INFINITY : INFINITY, place.has(1) ? -INFINITY : INFINITY}, {0.0f, 0.0f}};
  if ((item.flags & AttentionEntry::kResume) != 0) load_state<Traits>(params, place, out, rows);
  return rows;
}

template <class Traits>
__device__ __forceinline__ void store_state(const AttentionParams& params, const OutputRows& rows,
                                            const float (&out)[Traits::kOutChunks][64],
                                            const RowState& state) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows.has(h)) continue;
    const int64_t row = rows.row + 8 * h;
    if (lane % 4 == 0) {
      params.state_max[rows.head * params.state_rows + row] = state.max[h];
      params.state_sum[rows.head * params.state_rows + row] = state.sum[h];
    }
    float* target = params.state_out + (row * params.num_heads + rows.head) * Traits::kValue + 2 * (lane % 4);
#pragma unroll
    for (int chunk = 0; chunk < Traits::kOutChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        *reinterpret_cast<float2*>(target + chunk * 128 + 8 * i) =
            make_float2(out[chunk][4 * i + 2 * h], out[chunk][4 * i + 2 * h + 1]);
      }
    }
  }
}

/// Four threads hold word t of four 16-byte pieces each; afterwards thread t holds all of piece t.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
  const int32_t lane = threadIdx.x % 4;
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t sent = upper ? words[i] : words[i + distance];
      const uint32_t received = __shfl_xor_sync(0xFFFFFFFF, sent, distance);
      words[i] = upper ? received : words[i];
      words[i + distance] = upper ? words[i + distance] : received;
    }
  }
}

/// Writes one row of float32 output, 8 bytes a thread.
template <class Traits>
__device__ __forceinline__ void store_row_f32(float* row, const float (&out)[Traits::kOutChunks][64], int h,
                                              float factor) {
  float* target = row + 2 * (threadIdx.x % 4);
#pragma unroll
  for (int chunk = 0; chunk < Traits::kOutChunks; ++chunk) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float x = factor == 0.0f ? 0.0f : out[chunk][4 * i + 2 * h] * factor;
      const float y = factor == 0.0f ? 0.0f : out[chunk][4 * i + 2 * h + 1] * factor;
      *reinterpret_cast<float2*>(target + chunk * 128 + 8 * i) = make_float2(x, y);
    }
  }
}

/// Writes one row of 16-bit output, 16 bytes a thread. Every thread of the warp takes part.
template <class Traits>
__device__ __forceinline__ void store_row_16(uint16_t* row, const float (&out)[Traits::kOutChunks][64], int h,
                                             float factor, bool real) {
  uint16_t* target = row + 8 * (threadIdx.x % 4);
#pragma unroll
  for (int chunk = 0; chunk < Traits::kOutChunks; ++chunk) {
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &out[chunk][4 * (4 * group + i) + 2 * h];
        words[i] = factor == 0.0f ? 0u : pack<Traits::kElement>(pair[0] * factor, pair[1] * factor);
      }
      transpose_quad(words);
      if (real) {
        *reinterpret_cast<uint4*>(target + chunk * 128 + 32 * group) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

/// LSE of a thread's two rows: -inf for a row without a visible key.
__device__ __forceinline__ void store_lse(const AttentionParams& params, const OutputRows& rows,
                                          const RowState& state) {
  if (params.lse == nullptr || threadIdx.x % 4 != 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (!rows.has(h)) continue;
    const float natural = state.sum[h] == 0.0f ? -INFINITY : state.max[h] + logf(state.sum[h]);
    params.lse[rows.head * params.lse_head_stride + (rows.row + 8 * h) * params.lse_row_stride] =
        natural * params.lse_unit;
  }
}

/// Normalises and writes a thread's two rows. A row without a visible key is 0 whatever its accumulators
/// hold.
template <class Traits>
__device__ __forceinline__ void store_output(const AttentionParams& params, const OutputRows& rows,
                                             const float (&out)[Traits::kOutChunks][64],
                                             const RowState& state) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float factor = state.sum[h] == 0.0f ? 0.0f : __fdividef(1.0f, state.sum[h]);
    const int64_t offset = (rows.row + 8 * h) * params.out_row_stride + rows.head * params.out_head_stride;
    if (params.out_is_f32) {
      if (rows.has(h)) store_row_f32<Traits>(static_cast<float*>(params.out) + offset, out, h, factor);
    } else {
      store_row_16<Traits>(static_cast<uint16_t*>(params.out) + offset, out, h, factor, rows.has(h));
    }
  }
}

/// Writes what an item's rows have come to and lets go of the item.
template <class Traits>
__device__ __forceinline__ void finish_item(const AttentionParams& params, const ItemSlot& slot,
                                            uint32_t rank, int32_t warpgroup,
                                            const float (&out)[Traits::kOutChunks][64],
                                            const RowState& state) {
  const OutputRows place = output_rows(params, slot.item, rank, warpgroup);
  if ((slot.item.flags & AttentionEntry::kStoreState) != 0) {
    store_state<Traits>(params, place, out, state);
  } else {
    store_output<Traits>(params, place, out, state);
    store_lse(params, place, state);
  }
  __syncwarp();
  if (thread_index() % 32 == 0) free_item(slot);
}

}  // namespace mlaprefill::sm90
