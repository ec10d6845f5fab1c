// The one description of a kernel instance: dims, tile, registers and the shared memory plan.
#pragma once

#include <cstdint>

#include "backend/sm90/attention_params.h"
#include "backend/sm90/wgmma.cuh"

namespace mlaprefill::sm90 {

template <Element kElement_, int kNope_, int kRope_, int kValue_>
struct AttentionTraits {
  static constexpr Element kElement = kElement_;
  static constexpr int kNope = kNope_;
  static constexpr int kRope = kRope_;
  static constexpr int kValue = kValue_;
  static constexpr int kQueryDim = kNope + kRope;

  /// A warpgroup holds the whole output, the scores and the probabilities of its 64 rows in registers. With
  /// v_dim 128 there is room for 128 keys and for Q as well; with 256, for 64 keys and half of Q. Products
  /// that take all of Q from shared memory would need all of its bandwidth.
  static constexpr int kKeyTile = kValue == 128 ? 128 : 64;

  static constexpr int kPanel = 64;  ///< columns of one swizzled panel, 128 bytes
  static constexpr int kQueryPanels = kQueryDim / kPanel;
  static constexpr int kNopePanels = kNope / kPanel;
  static constexpr int kValuePanels = kValue / kPanel;
  static constexpr int kQuerySteps = kQueryDim / 16;
  static constexpr int kSharedQuerySteps = kValue == 128 ? 0 : 8;  ///< 16 columns of Q left in shared memory
  static constexpr int kKeySteps = kKeyTile / 16;

  static constexpr int kScores = kKeyTile / 2;         ///< float32 registers of S
  static constexpr int kProbabilities = kKeyTile / 4;  ///< packed registers of P
  static constexpr int kOut = kValue / 2;              ///< float32 registers of O

  static constexpr int kStages = 2;
  static constexpr uint32_t kQueryPanelBytes = kRowsPerWarpgroup * 128;
  static constexpr uint32_t kQueryBytes = kQueryPanels * kQueryPanelBytes;  ///< of one warpgroup
  static constexpr uint32_t kKeyPanelBytes = kKeyTile * 128;
  static constexpr uint32_t kKeyBytes = kQueryPanels * kKeyPanelBytes;
  static constexpr uint32_t kValueBytes = kValuePanels * kKeyPanelBytes;

  static_assert(kNope % kPanel == 0 && kRope == kPanel && kValue % 128 == 0);
};

inline constexpr int kConsumerWarpgroups = 2;
inline constexpr int kClusterCtas = 2;
inline constexpr int kThreads = 128 * (1 + kConsumerWarpgroups);
inline constexpr uint32_t kProducerRegisters = 24;
inline constexpr uint32_t kConsumerRegisters = 240;

/// A position in a two stage ring that never restarts.
struct RingSlot {
  uint32_t index = 0;
  __device__ uint32_t stage() const { return index & 1; }
  __device__ uint32_t parity() const { return (index >> 1) & 1; }
};

/// Key tiles of a ring that one of an item takes: each warpgroup its own when it has its own head.
__device__ __forceinline__ uint32_t slots_per_tile(RowSplit split) {
  return split == RowSplit::kOneBlockFourHeads ? 2 : 1;
}

/// One unit of work as the scheduler sends it: an entry, its first head and its number of key tiles.
struct WorkItem {
  int32_t q_row, q_rows, kv_row, kv_len;
  int32_t causal_offset;
  int32_t flags;  ///< of the entry, and the scheduler's
  int32_t head;
  int32_t tiles;  ///< < 0: no more work

  __device__ RowSplit row_split() const { return row_split_of(flags); }
  /// Whether the warpgroups of each CTA change places: a causal mask gives one of them more tiles.
  __device__ bool swapped() const { return (flags & AttentionEntry::kSwapped) != 0; }
  __device__ int32_t kv_split_index() const { return kv_split_index_of(flags); }
  __device__ int32_t num_kv_splits() const { return num_kv_splits_of(flags); }
  __device__ int32_t first_partial() const { return first_partial_of(flags); }
  __device__ RingSlot first_slot(int32_t warpgroup) const {
    const auto first = static_cast<uint32_t>(flags >> AttentionEntry::kFirstSlotShift) & 3;
    return {first + (slots_per_tile(row_split()) == 2 ? static_cast<uint32_t>(warpgroup) : 0)};
  }
};
static_assert(sizeof(WorkItem) == 32);

inline constexpr int kItemSlots = 4;

struct alignas(16) ItemSlot {
  WorkItem item;
  uint64_t full;
  uint64_t empty;  ///< of CTA 0, which schedules for both
};

/// Dynamic shared memory, 1,024-byte aligned (the swizzle's period). Barriers sit at the end.
template <class Traits>
struct SharedStorage {
  uint8_t q[kConsumerWarpgroups][Traits::kQueryBytes];
  uint8_t k[Traits::kStages][Traits::kKeyBytes];
  uint8_t v[Traits::kStages][Traits::kValueBytes];
  uint8_t out[kConsumerWarpgroups][4][kStoreRows * 128];  ///< 64 columns of each warp's output
  ItemSlot items[kItemSlots];
  uint64_t k_full[Traits::kStages];
  uint64_t k_empty[Traits::kStages];
  uint64_t v_full[Traits::kStages];
  uint64_t v_empty[Traits::kStages];
  uint64_t k_joined;  ///< both CTAs' stages have run dry
  uint64_t v_joined;
  uint64_t q_full[kConsumerWarpgroups];
  uint64_t q_empty[kConsumerWarpgroups];
  uint64_t claim_next;  ///< of CTA 0: its K producer nears the end of an item
  uint64_t started;     ///< the first K tile and Q are under way
};

/// Arrivals that free a K or V stage, however an item splits: 8 warps of both CTAs, or 8 warps counting 2, or
/// 4 warps counting 4.
inline constexpr uint32_t kStageArrivals = 16;
/// Consumer warps and the three producers of both CTAs read an item.
inline constexpr uint32_t kItemArrivals = kClusterCtas * (4 * kConsumerWarpgroups + 3);

}  // namespace mlaprefill::sm90
