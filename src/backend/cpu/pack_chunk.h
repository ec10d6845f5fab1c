// Keys and values of plain attention, packed chunk by chunk from the caller's strided tensors.
#pragma once

#include "backend/cpu/flash.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill::cpu {

/// Rows of one head of a [rows, heads, columns] tensor, or of a [rows, columns] tensor.
struct HeadRows {
  const std::byte* data = nullptr;  ///< row 0
  DType dtype = DType::kF32;
  int64_t row_stride = 0;  ///< elements

  const std::byte* row(int64_t index) const { return data + index * row_stride * size_bytes(dtype); }
};

/// The rows from `first_row` on, of head `head` where the tensor has heads.
HeadRows head_rows(const ConstTensor& tensor, int64_t first_row, int64_t head);

/// Packs chunks into memory it keeps.
class ChunkPacker {
 public:
  /// Allocates all that chunks of up to `keys` keys need.
  void reserve(const FlashShape& shape, int64_t keys);

  /// keys[0] per head, keys[1] shared (when shape.depths[1] > 0).
  KeyChunk pack(const FlashShape& shape, const HeadRows keys[2], const HeadRows& values, int64_t key_begin,
                int64_t key_end);

 private:
  void pack_keys(const FlashShape& shape, int part, const HeadRows& keys, int64_t key_begin, int64_t key_end,
                 std::byte* target);
  void pack_values(const FlashShape& shape, const HeadRows& values, const KeyChunk& chunk, std::byte* target,
                   bool* finite);
  /// The rows themselves where they already are in the operand type and wide enough, else converted ones.
  const void* operand_rows(const KernelTable& kernels, const HeadRows& rows, int64_t first, int64_t count,
                           int64_t columns, int64_t padded_columns, int64_t* stride);

  std::byte* keys_[2] = {nullptr, nullptr};
  std::byte* values_ = nullptr;
  std::byte* rows_ = nullptr;
  bool* finite_ = nullptr;
  AlignedBuffer key_buffer_[2], value_buffer_, row_buffer_, finite_buffer_;
};

}  // namespace mlaprefill::cpu
