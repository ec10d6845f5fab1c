// The producer side: three threads load Q, K and V, each running ahead of the consumers as far as there is
// room. At the start, when all CTAs load at once, Q and the first K tile go before the rest.
#pragma once

#include "backend/sm90/attention_scheduler.cuh"

namespace mlaprefill::sm90 {

/// First row, in the entry, of a warpgroup's block. The four blocks of a full entry are dealt so that both
/// CTAs get the same work under a causal mask: 0 and 3, 1 and 2.
__device__ __forceinline__ int32_t first_row(const WorkItem& item, uint32_t rank, int32_t warpgroup) {
  const RowSplit split = item.row_split();
  if (item.swapped()) warpgroup = 1 - warpgroup;
  int32_t block = 0;
  if (split == RowSplit::kFourBlocksOneHead) block = warpgroup == 0 ? rank : 3 - rank;
  if (split == RowSplit::kTwoBlocksTwoHeads) block = warpgroup;
  return block * kRowsPerWarpgroup;
}

/// Head of a warpgroup; may be past the last one, whose work is then repeated and not stored.
__device__ __forceinline__ int32_t head_of(const WorkItem& item, uint32_t rank, int32_t warpgroup) {
  if (item.row_split() == RowSplit::kTwoBlocksTwoHeads) return item.head + static_cast<int32_t>(rank);
  if (item.row_split() == RowSplit::kOneBlockFourHeads)
    return item.head + 2 * static_cast<int32_t>(rank) + warpgroup;
  return item.head;
}

__device__ __forceinline__ int32_t kv_head(const AttentionParams& params, int32_t head) {
  return static_cast<int32_t>((static_cast<float>(head) + 0.5f) * params.kv_heads_per_q_head);
}

/// Loads `kPanels` panels of one key tile. With a shared tile each CTA loads half of the rows for both.
template <class Traits, int kPanels>
__device__ __forceinline__ void load_key_panels(const CUtensorMap* map, uint32_t destination, BoxPosition at,
                                                bool shared_tile, uint32_t rank, uint32_t barrier) {
  constexpr int32_t kHalfRows = Traits::kKeyTile / 2;
  constexpr uint32_t kHalfBytes = Traits::kKeyPanelBytes / 2;
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    at.column = panel * Traits::kPanel;
    const uint32_t target = destination + panel * Traits::kKeyPanelBytes;
    BoxPosition half = at;
    if (shared_tile) {
      half.distance += static_cast<int32_t>(rank) * kHalfRows;
      load_box_multicast(target + rank * kHalfBytes, map, half, barrier, kEvictLast);
    } else {
      load_box(target, map, half, barrier, kEvictLast);
      half.distance += kHalfRows;
      load_box(target + kHalfBytes, map, half, barrier, kEvictLast);
    }
  }
}

template <class Traits>
__device__ __forceinline__ void load_queries(const AttentionParams& params, SharedStorage<Traits>& shared,
                                             const WorkItem& item, uint32_t rank, int32_t warpgroup) {
  const uint32_t barrier = shared_address(&shared.q_full[warpgroup]);
  barrier_arrive_expect(barrier, Traits::kQueryBytes);
  const int32_t row = first_row(item, rank, warpgroup);
  const int32_t head = min(head_of(item, rank, warpgroup), params.num_heads - 1);
  BoxPosition at{0, head, kRaggedExtent - item.q_rows + row, item.q_row + item.q_rows};
  const uint32_t target = shared_address(&shared.q[warpgroup]);
#pragma unroll 1
  for (int panel = 0; panel < Traits::kQueryPanels; ++panel) {
    at.column = panel * Traits::kPanel;
    load_box(target + panel * Traits::kQueryPanelBytes, &params.q_map, at, barrier, kEvictFirst);
  }
}

/// Run by one thread of each CTA. Each warpgroup's Q follows as soon as that warpgroup has taken the one
/// before.
template <class Traits>
__device__ __forceinline__ void produce_queries(const AttentionParams& params, SharedStorage<Traits>& shared,
                                                uint32_t rank) {
  for (uint32_t n = 0;; ++n) {
    const ItemSlot& item_slot = wait_item(shared, n);
    const WorkItem& item = item_slot.item;
    if (item.tiles < 0) return;
#pragma unroll 1
    for (int32_t warpgroup = 0; warpgroup < kConsumerWarpgroups; ++warpgroup) {
      barrier_wait(shared_address(&shared.q_empty[warpgroup]), (n & 1) ^ 1);
      load_queries(params, shared, item, rank, warpgroup);
    }
    if (n == 0) barrier_arrive(shared_address(&shared.started));
    free_item(item_slot);
  }
}

/// Waits until every stage of a ring is free in both CTAs. While each CTA loads for itself it only knows its
/// own stages; before tiles are shared again, both must have run dry.
__device__ __forceinline__ void join_rings(const uint64_t (&empty)[2], const uint64_t& joined, RingSlot slot,
                                           uint32_t count) {
  for (int stage = 0; stage < 2; ++stage, ++slot.index) {
    barrier_wait(shared_address(&empty[slot.stage()]), slot.parity() ^ 1);
  }
  for (uint32_t rank = 0; rank < kClusterCtas; ++rank) {
    cluster_barrier_arrive(cluster_address(shared_address(&joined), rank), 1);
  }
  barrier_wait(shared_address(&joined), count & 1);
}

/// Calls load(slot, position, whether both CTAs share the tile) for every stage the CTA's consumers take, in
/// their order, once it is free. Run by one thread of each CTA.
template <class Traits, class Load>
__device__ __forceinline__ void for_each_stage(const AttentionParams& params, SharedStorage<Traits>& shared,
                                               uint32_t rank, const uint64_t (&empty)[2],
                                               const uint64_t& joined, bool claims_items, Load load) {
  constexpr int32_t kClaimDistance = 4;  ///< key tiles still to load when the next item is claimed
  RingSlot slot;
  uint32_t splits = 0;  // changes between shared tiles (even) and tiles loaded by each CTA for itself (odd)
  for (uint32_t n = 0;; ++n) {
    const ItemSlot& item_slot = wait_item(shared, n);
    const WorkItem& item = item_slot.item;
    if (item.tiles < 0) return;
    if (claims_items && item.tiles == 0) barrier_arrive(shared_address(&shared.claim_next));
    const bool shared_tile = item.row_split() == RowSplit::kFourBlocksOneHead;
    if (shared_tile == ((splits & 1) != 0)) {
      if (shared_tile) join_rings(empty, joined, slot, splits / 2);
      ++splits;
    }
#pragma unroll 1
    for (int32_t tile = 0; tile < item.tiles; ++tile) {
      if (claims_items && item.tiles - tile == min(item.tiles, kClaimDistance))
        barrier_arrive(shared_address(&shared.claim_next));
#pragma unroll 1
      for (uint32_t step = 0; step < slots_per_tile(item.row_split()); ++step, ++slot.index) {
        const int32_t head = min(head_of(item, rank, static_cast<int32_t>(step)), params.num_heads - 1);
        const BoxPosition at{0, kv_head(params, head), kRaggedExtent - item.kv_len + tile * Traits::kKeyTile,
                             item.kv_row + item.kv_len};
        barrier_wait(shared_address(&empty[slot.stage()]), slot.parity() ^ 1);
        load(slot, at, item.row_split() == RowSplit::kFourBlocksOneHead);
      }
    }
    free_item(item_slot);
  }
}

template <class Traits>
__device__ __forceinline__ void produce_keys(const AttentionParams& params, SharedStorage<Traits>& shared,
                                             uint32_t rank) {
  const auto load = [&](RingSlot slot, BoxPosition at, bool shared_tile) {
    if (slot.index == 1) barrier_wait(shared_address(&shared.started), 0);
    const uint32_t target = shared_address(&shared.k[slot.stage()]);
    const uint32_t full = shared_address(&shared.k_full[slot.stage()]);
    barrier_arrive_expect(full, Traits::kKeyBytes);
    load_key_panels<Traits, Traits::kNopePanels>(&params.k_nope_map, target, at, shared_tile, rank, full);
    if (!params.rope_per_head) at.head = 0;
    load_key_panels<Traits, Traits::kQueryPanels - Traits::kNopePanels>(
        &params.k_rope_map, target + Traits::kNopePanels * Traits::kKeyPanelBytes, at, shared_tile, rank,
        full);
    if (slot.index == 0) barrier_arrive(shared_address(&shared.started));
  };
  for_each_stage(params, shared, rank, shared.k_empty, shared.k_joined, rank == 0, load);
}

template <class Traits>
__device__ __forceinline__ void produce_values(const AttentionParams& params, SharedStorage<Traits>& shared,
                                               uint32_t rank) {
  const auto load = [&](RingSlot slot, BoxPosition at, bool shared_tile) {
    if (slot.index == 0) barrier_wait(shared_address(&shared.started), 0);
    const uint32_t full = shared_address(&shared.v_full[slot.stage()]);
    barrier_arrive_expect(full, Traits::kValueBytes);
    load_key_panels<Traits, Traits::kValuePanels>(&params.v_map, shared_address(&shared.v[slot.stage()]), at,
                                                  shared_tile, rank, full);
  };
  for_each_stage(params, shared, rank, shared.v_empty, shared.v_joined, false, load);
}

}  // namespace mlaprefill::sm90
