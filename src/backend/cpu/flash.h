// The blocked online softmax of one head: query rows against packed chunks of keys and values, for any
// kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/scratch.h"
#include "core/checked.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill::cpu {

/// Row stride in elements: an odd number of cache lines, so that the rows of a tile fall into different sets.
constexpr int64_t row_stride(int64_t columns, int64_t element_bytes) {
  return (((columns * element_bytes + 63) / 64) | 1) * 64 / element_bytes;
}

/// Keys of a chunk for a task that sees `keys` of them; `several` of them share the second-level cache with
/// the task's queries and sums. A chunk alone may have twice as many: only one block of rows lies beside it.
/// 0 keys give the most that a chunk may have.
constexpr int64_t keys_at_once(int64_t keys, int64_t several) {
  return keys <= 2 * several ? 2 * several : several;
}

/// What is the same for every task of a call.
struct FlashShape {
  const KernelTable* kernels = nullptr;
  int64_t depths[2] = {0, 0};  ///< query and key columns: per head, then shared by all heads (0: none)
  int64_t v_columns = 0;
  double softmax_scale = 0.0;
  int64_t key_block = 0;  ///< keys of one softmax step, a multiple of 64

  int64_t padded_depth(int part) const { return round_up(depths[part], kernels->depth_multiple); }
  int64_t padded_v_columns() const { return round_up(v_columns, kPanelColumns); }
  int64_t key_panel_bytes(int part) const {
    return padded_depth(part) * kPanelColumns * kernels->operand_bytes;
  }
};

/// Keys [key_begin, key_end) of a task, packed. Panel p of a part holds keys key_begin + 64 p ...
struct KeyChunk {
  int64_t key_begin = 0;
  int64_t key_end = 0;
  const std::byte* keys[2] = {nullptr, nullptr};  ///< panels of the two depths
  const std::byte* values = nullptr;              ///< one panel for each 64 value columns
  int64_t value_panel_bytes = 0;
  const bool* values_finite = nullptr;  ///< for each 64 keys: no value of theirs is infinite or NaN
};

/// Queries, outputs and carried state of one task: one head, `rows` query rows. Pointers are those of row 0.
struct FlashQueries {
  int64_t rows = 0;
  const void* q = nullptr;
  DType q_dtype = DType::kF32;
  int64_t q_stride = 0;
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  int64_t out_stride = 0;
  LseView lse;  ///< data is that of row 0 of this head; only token_stride and base matter besides
  float* state_out = nullptr;
  int64_t state_out_stride = 0;
  float* state_max = nullptr;
  float* state_sum = nullptr;
  bool resume = false;
  bool store_state = false;
};

/// Queries and outputs of tensor rows [row, row + rows) and one head, without carried state.
FlashQueries flash_queries(const ConstTensor& q, const Tensor& out, const LseView& lse, int64_t row,
                           int64_t rows, int64_t head);

/// One task. visible_begin() and visible_end() are filled by the caller after begin(); both never decrease.
///
/// Where the first chunk has every visible key, a block of rows is converted, attended and written before the
/// next one begins: its queries and sums stay in the nearest caches.
class Flash {
 public:
  /// Allocates all that tasks of up to `rows` rows need.
  void reserve(const FlashShape& shape, int64_t rows);
  void begin(const FlashShape& shape, const FlashQueries& queries);

  /// Row i sees keys [visible_begin()[i], visible_end()[i]).
  int64_t* visible_begin() { return visible_begin_; }
  int64_t* visible_end() { return visible_end_; }

  void attend(const KeyChunk& chunk);
  void finish();

 private:
  struct Block;

  void begin_rows(int64_t row, int64_t rows);
  void convert_queries(int64_t row, int64_t rows);
  void attend_rows(const KeyChunk& chunk, int64_t row, int64_t rows);
  void attend_block(const KeyChunk& chunk, const Block& block);
  void trim_strips(const Block& block);
  int64_t next_trim(const Block& block, int64_t row) const;
  void multiply_keys(const KeyChunk& chunk, const Block& block);
  void take_softmax(const Block& block);
  void multiply_values(const KeyChunk& chunk, const Block& block);
  void multiply_values_exactly(const KeyChunk& chunk, const Block& block);
  void add_visible_values(const KeyChunk& chunk, const Block& block, int64_t panel);
  void clear_output(int64_t row, int64_t rows);
  bool needs_exact_values(const KeyChunk& chunk, const Block& block) const;
  float query_factor() const;
  void finish_rows(int64_t row, int64_t rows);
  void write_output(int64_t row, int64_t rows);
  void write_lse(int64_t row, int64_t rows);
  void write_state(int64_t row, int64_t rows);

  /// Rows of q_ and out_, which hold one block of rows where there is one chunk.
  int64_t held_row(int64_t row) const { return one_chunk_ ? row % shape_.kernels->query_block : row; }
  std::byte* q(int64_t row) const { return q_ + held_row(row) * q_stride_ * shape_.kernels->operand_bytes; }
  float* out(int64_t row) const { return out_ + held_row(row) * out_stride_; }

  FlashShape shape_;
  FlashQueries queries_;
  bool begun_ = false;
  bool one_chunk_ = false;  ///< the first chunk has every visible key

  int64_t* visible_begin_ = nullptr;
  int64_t* visible_end_ = nullptr;
  float* out_ = nullptr;
  float* max_ = nullptr;
  float* sum_ = nullptr;
  int64_t out_stride_ = 0;

  std::byte* q_ = nullptr;
  float* scores_ = nullptr;
  std::byte* p_ = nullptr;
  int64_t q_stride_ = 0;
  int64_t score_stride_ = 0;
  int64_t p_stride_ = 0;
  int32_t* trims_ = nullptr;  ///< visible begin and end, column begin and end of each row of a block
  bool* started_ = nullptr;   ///< for each query block: out_ holds sums

  AlignedBuffer visible_buffer_, out_buffer_, state_buffer_, q_buffer_, score_buffer_, p_buffer_,
      trim_buffer_, started_buffer_;
};

}  // namespace mlaprefill::cpu
