// What the Hopper attention kernel reads: the host computed schedule and one launch's tensors.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

namespace mlaprefill::sm90 {

/// How a cluster's four warpgroups (two in each of its two CTAs) share an entry of the schedule. Each
/// warpgroup computes 64 query rows of one head whatever the row split, in the same order of operations, so
/// it never changes a result.
enum class RowSplit : int32_t {
  kFourBlocksOneHead = 0,  ///< 129..256 rows: K and V are loaded once for both CTAs
  kTwoBlocksTwoHeads = 1,  ///< 65..128 rows: one head a CTA
  kOneBlockFourHeads = 2,  ///< 1..64 rows: one head a warpgroup
};

inline constexpr int32_t kRowsPerWarpgroup = 64;
inline constexpr int32_t kStoreRows = 16;  ///< rows a warp holds and stores at once
inline constexpr int32_t kMaxEntryRows = 4 * kRowsPerWarpgroup;
inline constexpr int32_t kKeyTileTokens = 128;  ///< a multiple of every instance's key tile

constexpr int32_t heads_per_item(RowSplit split) { return 1 << static_cast<int32_t>(split); }

/// Up to 256 query rows of one request against a run of its keys; work for the heads of its section. Where
/// the keys are split, each split is an entry, and the last of an item's splits to be computed merges them in
/// the order of the keys. Row numbers index the launch's tensors. Local query i sees local key j iff j <
/// kv_len and j <= causal_offset + i.
struct AttentionEntry {
  static constexpr int32_t kNotCausal = 1 << 30;

  // Flags, from bit 0 on.
  static constexpr int32_t kRowSplitMask = 3;
  static constexpr int32_t kResume = 1 << 2;      ///< start from the carried state
  static constexpr int32_t kStoreState = 1 << 3;  ///< write the carried state instead of output and LSE
  static constexpr int32_t kFirstSlotShift = 4;   ///< 2 bits, of an item: ring position of its first key tile
  static constexpr int32_t kSwapped = 1 << 6;     ///< of an item: the warpgroups of each CTA change places
  static constexpr int32_t kSplitIndexShift = 7;  ///< 6 bits: which of its rows' splits of keys this is
  static constexpr int32_t kNumSplitsShift = 13;  ///< 6 bits: how many there are; 0: the keys are not split
  static constexpr int32_t kFirstPartialShift = 19;  ///< 12 bits: of the item, of an entry's head item 0

  int32_t q_row = 0;
  int32_t q_rows = 0;
  int32_t kv_row = 0;
  int32_t kv_len = 0;
  int32_t causal_offset = kNotCausal;  ///< -2^30 .. 2^30
  int32_t flags = 0;                   ///< a RowSplit and the bits above
  int32_t reserved[2] = {};
};
static_assert(sizeof(AttentionEntry) == 32);

constexpr RowSplit row_split_of(int32_t flags) {
  return static_cast<RowSplit>(flags & AttentionEntry::kRowSplitMask);
}
constexpr int32_t kv_split_index_of(int32_t flags) { return flags >> AttentionEntry::kSplitIndexShift & 63; }
constexpr int32_t num_kv_splits_of(int32_t flags) { return flags >> AttentionEntry::kNumSplitsShift & 63; }

inline constexpr int32_t kMaxSplitsPerEntry = 32;
inline constexpr int32_t kMaxSplitsPerLaunch = 4096;  ///< counted for each head item
static_assert(kMaxSplitsPerEntry < 1 << 6);           // and its arrivals fit in 8 bits
static_assert(kMaxSplitsPerLaunch == 1 << (31 - AttentionEntry::kFirstPartialShift));

/// Counted modulo kMaxSplitsPerLaunch: head item 0 need not be among those of the section.
constexpr int32_t first_partial_of(int32_t flags) {
  return flags >> AttentionEntry::kFirstPartialShift & (kMaxSplitsPerLaunch - 1);
}

/// Bytes of AttentionParams::arrivals: 4 words an item, and every item has two splits or more.
constexpr int64_t arrivals_bytes(int64_t kv_splits) { return (kv_splits + 1) / 2 * 16; }

/// A run of entries of equal RowSplit and, of each, a run of head items. Its work items are ordered by groups
/// of `group_items` head items, then entry, then head item within the group: entries that share keys meet in
/// L2. A list of sections ends with one of no entries.
struct AttentionSection {
  uint32_t item_end = 0;  ///< items of this section and all before it
  int32_t entry_begin = 0;
  int32_t entry_count = 0;
  int32_t items_per_entry = 0;  ///< ceil(num_heads / heads_per_item) if all heads are the section's
  int32_t group_items = 0;
  int32_t first_head_item = 0;
  int32_t reserved[2] = {};
};
static_assert(sizeof(AttentionSection) == 32);

/// A 16-bit tensor as plain memory. Strides in elements; columns are contiguous.
struct TensorRows {
  const uint16_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

#ifdef __CUDACC__
  __device__ const uint16_t* row(int64_t row, int32_t head) const {
    return data + row * row_stride + head * head_stride;
  }
#endif
};

/// Kernel parameters of one launch. All memory is device memory. Strides are in elements.
struct AttentionParams {
  CUtensorMap q_map;       ///< [q rows, heads, qk_dim], box 64 columns x 64 rows
  CUtensorMap k_nope_map;  ///< [k rows, kv heads, nope], box 64 columns x half a key tile
  CUtensorMap k_rope_map;  ///< [k rows, 1 or kv heads, rope], the same box
  CUtensorMap v_map;       ///< [k rows, kv heads, v_dim], the same box

  CUtensorMap out_map;  ///< [q rows, heads, v_dim], box 64 columns x kStoreRows; 16-bit outputs alone

  TensorRows q, k_nope, k_rope, v;  ///< the same tensors, for rows that take the slow way

  const AttentionEntry* entries;
  const AttentionSection* sections;
  uint32_t* item_counter;  ///< zero at the start of a launch, which leaves it zero again

  void* out;  ///< [q rows, heads, v_dim]; rows and heads 16-byte aligned
  int64_t out_row_stride;
  int64_t out_head_stride;
  bool out_is_f32;  ///< else q's dtype

  float* lse;  ///< log-sum-exp of the scaled logits, or null
  int64_t lse_row_stride;
  int64_t lse_head_stride;
  float lse_unit;  ///< 1 for natural logarithms, log2(e) for base 2

  float* state_out;  ///< [q rows, heads, v_dim] contiguous; null when no entry carries state
  float* state_max;  ///< [heads, q rows]
  float* state_sum;  ///< [heads, q rows]
  int64_t state_rows;

  /// Of each warp's rows, in the order of its registers: [partial, 4 blocks of 64 rows, 4 warps, v_dim / 8 +
  /// 1, 32 lanes], the last of each thread the maxima and sums of its two rows. 16-byte aligned.
  float4* partials;
  /// Of each item, from 4 * (first partial / 2) on, for each of its blocks of 64 rows: how many splits each
  /// of its warps has written, 8 bits a warp. Zero at the start of a launch, which leaves them zero again.
  uint32_t* arrivals;

  int32_t num_heads;
  float kv_heads_per_q_head;  ///< 1 / (query heads that share a key head)
  bool rope_per_head;         ///< k_rope_map has a head dimension of kv heads rather than one shared head
  float scale;                ///< softmax scale, > 0
};

}  // namespace mlaprefill::sm90
