// One thread of a cluster claims work items and sends them to both CTAs.
#pragma once

#include "backend/sm90/attention_traits.cuh"
#include "backend/sm90/ptx.cuh"

namespace mlaprefill::sm90 {

/// Waits for item n = 0, 1, ... of this cluster. It stays in place until every reader has freed it.
template <class Traits>
__device__ __forceinline__ const ItemSlot& wait_item(SharedStorage<Traits>& shared, uint32_t n) {
  const ItemSlot& slot = shared.items[n % kItemSlots];
  barrier_wait(shared_address(&slot.full), (n / kItemSlots) & 1);
  return slot;
}

/// Tells the scheduler that this warp is done with an item; one thread a warp.
__device__ __forceinline__ void free_item(const ItemSlot& slot) {
  cluster_barrier_arrive(cluster_address(shared_address(&slot.empty), 0), 1);
}

/// Turns item numbers, which a cluster sees in increasing order, into work.
template <class Traits>
class ItemDecoder {
 public:
  __device__ explicit ItemDecoder(const AttentionParams& params) : params_(params) {}

  __device__ WorkItem decode(uint32_t item) {
    const AttentionSection* section = params_.sections + section_;
    for (; section->entry_count > 0 && item >= section->item_end; ++section_) {
      first_item_ = section->item_end;
      ++section;
    }
    if (section->entry_count == 0) return {.tiles = -1};
    const auto entries = static_cast<uint32_t>(section->entry_count);
    const auto group_items = static_cast<uint32_t>(section->group_items);
    const uint32_t local = item - first_item_;
    const uint32_t group_size = entries * group_items;
    const uint32_t group = local / group_size;
    const uint32_t in_group = local - group * group_size;
    const uint32_t heads = min(group_items, section->items_per_entry - group * group_items);
    const uint32_t entry_index = in_group / heads;
    const uint32_t head_item =
        section->first_head_item + group * group_items + in_group - entry_index * heads;

    const AttentionEntry entry = params_.entries[section->entry_begin + entry_index];
    const auto split = row_split_of(entry.flags);
    const int32_t visible = max(0, min(entry.kv_len, entry.causal_offset + entry.q_rows));
    const int32_t tiles = (visible + Traits::kKeyTile - 1) / Traits::kKeyTile;
    const uint32_t first_slot = ring_;
    ring_ += slots_per_tile(split) * static_cast<uint32_t>(tiles);
    return {.q_row = entry.q_row,
            .q_rows = entry.q_rows,
            .kv_row = entry.kv_row,
            .kv_len = entry.kv_len,
            .causal_offset = entry.causal_offset,
            .flags = static_cast<int32_t>(
                (static_cast<uint32_t>(entry.flags) | first_slot % 4 << AttentionEntry::kFirstSlotShift) +
                (head_item * static_cast<uint32_t>(num_kv_splits_of(entry.flags))
                 << AttentionEntry::kFirstPartialShift)),
            .head = static_cast<int32_t>(head_item << static_cast<uint32_t>(split)),
            .tiles = tiles};
  }

  /// Items of the launch, once decode() has said that there are no more.
  __device__ uint32_t items() const { return first_item_; }

 private:
  const AttentionParams& params_;
  uint32_t section_ = 0;
  uint32_t first_item_ = 0;
  uint32_t ring_ = 0;  // slots the K and V rings of a CTA have moved
};

/// Run by one thread of CTA 0. An item is claimed only when the K producer nears the end of the one before,
/// so that no cluster sits on work another could start.
/// A launch makes as many claims as it has items; the last one leaves the counter at zero for the next
/// launch.
template <class Traits>
__device__ __forceinline__ void schedule(const AttentionParams& params, SharedStorage<Traits>& shared) {
  const uint32_t clusters = gridDim.x / kClusterCtas;
  ItemDecoder<Traits> decoder(params);
  for (uint32_t n = 0;; ++n) {
    const ItemSlot& slot = shared.items[n % kItemSlots];
    uint32_t number = blockIdx.x / kClusterCtas;
    barrier_wait(shared_address(&slot.empty), ((n / kItemSlots) & 1) ^ 1);
    if (n > 0) {
      barrier_wait(shared_address(&shared.claim_next), (n - 1) & 1);
      number = clusters + atomicAdd(params.item_counter, 1);
    }
    WorkItem item = decoder.decode(number);
    if ((n & 1) != 0) item.flags |= AttentionEntry::kSwapped;
    for (uint32_t rank = 0; rank < kClusterCtas; ++rank) {
      const uint32_t full = cluster_address(shared_address(&slot.full), rank);
      const uint32_t target = cluster_address(shared_address(&slot.item), rank);
      cluster_barrier_arrive_expect(full, sizeof(WorkItem));
      cluster_store_async(target, make_int4(item.q_row, item.q_rows, item.kv_row, item.kv_len), full);
      cluster_store_async(target + 16, make_int4(item.causal_offset, item.flags, item.head, item.tiles),
                          full);
    }
    if (item.tiles < 0) {
      if (n > 0 && number == clusters + decoder.items() - 1) *params.item_counter = 0;
      return;
    }
  }
}

}  // namespace mlaprefill::sm90
