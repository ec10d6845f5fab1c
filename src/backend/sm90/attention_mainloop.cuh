// The consumer side: a warpgroup multiplies, masks, normalises and stores 64 query rows of one head at a
// time.
//
// For each key tile j it issues S = Q K(j)^T, then O += P V(j-1), scales and tests the scores while the
// second product runs and takes their exponentials when it is done. The two warpgroups of a CTA take turns,
// so that each takes exponentials while the other multiplies: left alone, both come to ask for the tensor
// cores at once.
#pragma once

#include "backend/sm90/attention_epilogue.cuh"
#include "backend/sm90/attention_load.cuh"
#include "backend/sm90/attention_mask.cuh"
#include "backend/sm90/attention_repair.cuh"
#include "backend/sm90/attention_softmax.cuh"

namespace mlaprefill::sm90 {

/// How this thread takes part in freeing a stage: one arrival a warp and CTA that loads into the stage.
class StageRelease {
 public:
  __device__ StageRelease(RowSplit split, uint32_t shared_base, uint32_t rank) {
    const uint32_t lane = threadIdx.x % 32;
    const bool both = split == RowSplit::kFourBlocksOneHead;
    const uint32_t arrivals = split == RowSplit::kOneBlockFourHeads ? 4 : both ? 1 : 2;
    packed_ = cluster_address(shared_base, both ? lane & 1 : rank) - shared_base;
    if (lane < (both ? 2u : 1u)) packed_ |= arrivals;
  }
  __device__ __forceinline__ void operator()(const uint64_t& barrier) const {
    const uint32_t arrivals = packed_ % 8;
    if (arrivals != 0) cluster_barrier_arrive(shared_address(&barrier) + packed_ - arrivals, arrivals);
  }

 private:
  uint32_t
      packed_;  ///< distance from this CTA's barriers to the target's, plus the arrivals: 0 for most threads
};

/// What registers hold of the Q of the warpgroup, as the A operand of S = Q K^T.
template <class Traits>
struct QueryFragments {
  uint32_t words[Traits::kQuerySteps - Traits::kSharedQuerySteps][4];

  __device__ __forceinline__ void load(uint32_t address) {
    const uint32_t thread = thread_index();
    const uint32_t lane = thread % 32;
    const uint32_t row = 16 * ((thread / 32) % 4) + (lane & 15);
#pragma unroll
    for (int step = Traits::kSharedQuerySteps; step < Traits::kQuerySteps; ++step) {
      const uint32_t piece = 2 * (step % 4) + (lane >> 4);
      load_matrix_x4(
          words[step - Traits::kSharedQuerySteps],
          address + (step / 4) * Traits::kQueryPanelBytes + row * 128 + ((piece ^ (row & 7)) << 4));
    }
  }
};

/// Lets the warpgroup's next Q be loaded once each of its warps has called this.
template <class Traits>
__device__ __forceinline__ void free_queries(SharedStorage<Traits>& shared, int32_t warpgroup) {
  __syncwarp();
  if (thread_index() % 32 == 0) barrier_arrive(shared_address(&shared.q_empty[warpgroup]));
}

/// Lets `count` tiles pass that the other warpgroups need and this one does not see.
template <class Traits>
__device__ __forceinline__ void skip_tiles(SharedStorage<Traits>& shared, const StageRelease& release,
                                           RingSlot slot, uint32_t stride, int32_t count) {
#pragma unroll 1
  for (int32_t i = 0; i < count; ++i) {
    slot.index += stride;
    barrier_wait(shared_address(&shared.k_full[slot.stage()]), slot.parity());
    release(shared.k_empty[slot.stage()]);
    barrier_wait(shared_address(&shared.v_full[slot.stage()]), slot.parity());
    release(shared.v_empty[slot.stage()]);
  }
}

/// A warpgroup's turn at the tensor cores of its CTA, which the other one has passed to it. Neither passes
/// twice before the other has taken: within an item they alternate, and the next item's second tile is not
/// loaded before the other has freed its last one but one, for there are two stages, loaded in order.
__device__ __forceinline__ void take_turn(int32_t warpgroup) { named_barrier_wait(1 + warpgroup); }
__device__ __forceinline__ void pass_turn(int32_t warpgroup) { named_barrier_arrive(1 + (1 - warpgroup)); }

/// The tiles of an item at which a warpgroup takes and passes turns: those that both warpgroups need, but the
/// first. The one that leads does not wait for its first turn, and the other does not pass on its last.
class Turns {
 public:
  __device__ Turns(int32_t both_need, bool leads)
      : take_begin_(uniform(leads ? 2 : 1)),
        take_end_(uniform(both_need)),
        pass_end_(uniform(leads ? both_need : both_need - 1)) {}
  __device__ bool takes(int32_t tile) const { return tile >= take_begin_ && tile < take_end_; }
  __device__ bool passes(int32_t tile) const { return tile < pass_end_; }

 private:
  int32_t take_begin_, take_end_, pass_end_;
};

/// Issues S = Q K^T; `q_shared` is the operand of Q where it stays in shared memory. If the warpgroup is to
/// wait for its turn, it does so after its first products, which keep the tensor cores busy meanwhile.
template <class Traits>
__device__ __forceinline__ void issue_scores(float (&scores)[Traits::kScores],
                                             const QueryFragments<Traits>& q, uint32_t q_shared, uint32_t k,
                                             bool takes_turn, int32_t warpgroup) {
  constexpr int kStepsBeforeTurn = 4;
  const uint64_t k_first = descriptor(k);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::kQuerySteps; ++step) {
    if (step == kStepsBeforeTurn && takes_turn) take_turn(warpgroup);
    const uint64_t k_step = k_first + operand_step((step / 4) * Traits::kKeyPanelBytes + (step % 4) * 32);
    if constexpr (Traits::kSharedQuerySteps > 0) {
      if (step < Traits::kSharedQuerySteps) {
        const uint64_t q_step =
            descriptor(q_shared + operand_step((step / 4) * Traits::kQueryPanelBytes + (step % 4) * 32));
        wgmma_shared<Traits::kElement>(scores, q_step, k_step, step > 0);
        continue;
      }
    }
    const uint32_t(&a)[4] = q.words[step - Traits::kSharedQuerySteps];
    wgmma_registers<Traits::kElement, false>(scores, a[0], a[1], a[2], a[3], k_step, step > 0);
  }
  wgmma_commit();
}

/// Issues O += P V.
template <class Traits>
__device__ __forceinline__ void issue_output(float (&out)[Traits::kOut],
                                             const uint32_t (&p)[Traits::kProbabilities], uint32_t v) {
  const uint64_t v_first = descriptor(v);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < Traits::kKeySteps; ++step) {
    wgmma_registers<Traits::kElement, true>(out, p[4 * step], p[4 * step + 1], p[4 * step + 2],
                                            p[4 * step + 3], v_first + operand_step(step * 16 * 128), true);
  }
  wgmma_commit();
}

template <int kOut>
__device__ __forceinline__ void scale_output(float (&out)[kOut], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kOut; ++i) out[i] *= factor[(i / 2) % 2];
}

/// Hides the keys of one tile that this thread's rows do not see.
template <class Traits>
__device__ __forceinline__ void mask_tile(float (&scores)[Traits::kScores], const WorkItem& item,
                                          uint32_t rank, int32_t warpgroup, int32_t tile) {
  const int32_t row = first_row(item, rank, warpgroup) + thread_row();
  const int32_t first_column = tile * Traits::kKeyTile + 2 * static_cast<int32_t>(threadIdx.x % 4);
  mask_scores(scores, visible_keys(item, row) - first_column, visible_keys(item, row + 8) - first_column);
}

template <class Traits>
__device__ __forceinline__ void pack_probabilities(uint32_t (&p)[Traits::kProbabilities],
                                                   const float (&scores)[Traits::kScores]) {
#pragma unroll
  for (int i = 0; i < Traits::kProbabilities; ++i) {
    p[i] = pack<Traits::kElement>(scores[2 * i], scores[2 * i + 1]);
  }
}

/// Runs the item's tiles and leaves the finished rows in `out` and `rows`; Q is loaded. `leads` says whether
/// this warpgroup takes the first turn, and then whether it will in the next item. Returns where the rows go:
/// computed again at the end rather than kept in registers across the loop.
template <class Traits>
__device__ __forceinline__ OutputRows attend(const AttentionParams& params, SharedStorage<Traits>& shared,
                                             const WorkItem& item, int32_t warpgroup,
                                             const QueryFragments<Traits>& q, float (&out)[Traits::kOut],
                                             RowState& rows, bool& leads) {
  float scores[Traits::kScores];
  uint32_t p[Traits::kProbabilities];
  const uint32_t q_shared = uniform(operand(shared_address(&shared.q[warpgroup]), Traits::kQueryPanelBytes));
  const uint32_t k_shared = uniform(operand(shared_address(&shared.k), Traits::kKeyPanelBytes));
  const uint32_t v_shared = uniform(operand(shared_address(&shared.v), Traits::kKeyPanelBytes));
  const TileRange own = tile_range<Traits>(item, first_row(item, cluster_rank(), warpgroup));
  const TileRange other = tile_range<Traits>(item, first_row(item, cluster_rank(), 1 - warpgroup));
  const TileRange range{uniform(own.unmasked), uniform(own.needed)};
  const Turns turns(min(own.needed, other.needed), leads);
  if (own.needed != other.needed) leads = own.needed < other.needed;
  const StageRelease release(item.row_split(), shared_address(&shared), cluster_rank());
  const uint32_t stride = uniform(slots_per_tile(item.row_split()));
  RingSlot slot{uniform(item.first_slot(warpgroup).index)};
  float factor[2] = {1.0f, 1.0f};
  float sums[2];

  barrier_wait(shared_address(&shared.k_full[slot.stage()]), slot.parity());
  issue_scores<Traits>(scores, q, q_shared, k_shared + slot.stage() * operand_step(Traits::kKeyBytes), false,
                       warpgroup);
  clear(out);
  const OutputRows first_place = output_rows(params, item, cluster_rank(), warpgroup);
  wgmma_wait<0>();
  pin(scores);
  release(shared.k_empty[slot.stage()]);
  rows = start_rows<Traits>(params, item, first_place, out);
  if (range.unmasked == 0) mask_tile<Traits>(scores, item, cluster_rank(), warpgroup, 0);
  if ((item.flags & AttentionEntry::kResume) == 0) start_max(scores, rows, params.scale);
  bool rescale = scale_scores(scores, rows, params.scale, factor);
  exponentiate(scores, sums);
  pack_probabilities<Traits>(p, scores);

#pragma unroll 1
  for (int32_t tile = 1; tile < range.needed; ++tile) {
    const RingSlot previous = slot;
    slot.index += stride;
    barrier_wait(shared_address(&shared.k_full[slot.stage()]), slot.parity());
    issue_scores<Traits>(scores, q, q_shared, k_shared + slot.stage() * operand_step(Traits::kKeyBytes),
                         turns.takes(tile), warpgroup);
    if (rescale) scale_output(out, factor);
    barrier_wait(shared_address(&shared.v_full[previous.stage()]), previous.parity());
    issue_output<Traits>(out, p, v_shared + previous.stage() * operand_step(Traits::kValueBytes));
    add_sums(rows, sums);
    wgmma_wait<1>();
    pin(scores);
    release(shared.k_empty[slot.stage()]);
    if (tile >= range.unmasked) mask_tile<Traits>(scores, item, cluster_rank(), warpgroup, tile);
    rescale = scale_scores(scores, rows, params.scale, factor);
    wgmma_wait<0>();
    pin(out);
    if (turns.passes(tile)) pass_turn(warpgroup);
    exponentiate(scores, sums);
    release(shared.v_empty[previous.stage()]);
    pack_probabilities<Traits>(p, scores);
  }

  if (rescale) scale_output(out, factor);
  barrier_wait(shared_address(&shared.v_full[slot.stage()]), slot.parity());
  issue_output<Traits>(out, p, v_shared + slot.stage() * operand_step(Traits::kValueBytes));
  add_sums(rows, sums);
  const OutputRows place = output_rows(params, item, cluster_rank(), warpgroup);
  wgmma_wait<0>();
  pin(out);
  release(shared.v_empty[slot.stage()]);
  skip_tiles(shared, release, slot, stride, item.tiles - range.needed);
  if (range.unmasked < range.needed && output_is_spoilt(out)) {
    repair_rows<Traits>(params, item, cluster_rank(), warpgroup, out, rows);
  }
  return place;
}

/// Run by the 128 threads of a warpgroup until there is no more work.
template <class Traits>
__device__ __forceinline__ void consume(const AttentionParams& params, SharedStorage<Traits>& shared,
                                        int32_t warpgroup) {
  float out[Traits::kOut];
  QueryFragments<Traits> q;
  RowState rows;

  bool leads = warpgroup == 0;
  for (uint32_t n = 0;; ++n) {
    const ItemSlot& slot = wait_item(shared, n);
    if (slot.item.tiles < 0) break;
    barrier_wait(shared_address(&shared.q_full[warpgroup]), n & 1);
    q.load(shared_address(&shared.q[warpgroup]));
    if constexpr (Traits::kSharedQuerySteps == 0) free_queries(shared, warpgroup);
    OutputRows place;
    if (slot.item.tiles > 0) {
      place = attend<Traits>(params, shared, slot.item, warpgroup, q, out, rows, leads);
    } else {
      place = output_rows(params, slot.item, cluster_rank(), warpgroup);
      clear(out);
      rows = start_rows<Traits>(params, slot.item, place, out);
    }
    if constexpr (Traits::kSharedQuerySteps > 0) free_queries(shared, warpgroup);
    finish_item<Traits>(params, shared, slot, cluster_rank(), warpgroup, place, out, rows);
  }
  wait_stores_read();
}

}  // namespace mlaprefill::sm90
