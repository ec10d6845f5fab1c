// The up-projection weight packed for the CPU kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/scratch.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {

/// Weights of every head in one operand type: panels of 64 output columns, those of the keys and then those
/// of the values.
class PackedWeights {
 public:
  PackedWeights(const KernelTable& kernels, const MlaDims& dims, const ConstTensor& kv_b_proj);

  const KernelTable& kernels() const { return *kernels_; }
  int64_t padded_rank() const { return padded_rank_; }
  int64_t panels_per_head() const { return panels_per_head_; }
  /// Of a head's columns in panels.
  int64_t first_value_column() const { return key_panels_ * kPanelColumns; }
  const std::byte* panel(int64_t head, int64_t index) const {
    return panels_ + (head * panels_per_head_ + index) * panel_bytes_;
  }

 private:
  const KernelTable* kernels_;
  int64_t padded_rank_;
  int64_t key_panels_;
  int64_t panels_per_head_;
  int64_t panel_bytes_;
  AlignedBuffer buffer_;
  std::byte* panels_ = nullptr;
};

class CpuWeights final : public LayerWeights {
 public:
  CpuWeights(IsaLevel level, const MlaDims& dims, const ConstTensor& kv_b_proj);

  IsaLevel level() const { return level_; }
  const MlaDims& dims() const { return dims_; }
  DType dtype() const { return dtype_; }
  /// The weights in `operand`; bf16 only for bf16 weights on a level that multiplies bf16. The first call
  /// with an operand packs them, later ones from any thread find them packed.
  const PackedWeights& packed(Operand operand) const;

 private:
  IsaLevel level_;
  MlaDims dims_;
  DType dtype_;
  AlignedBuffer copy_;  ///< the caller's weights, contiguous
  ConstTensor tensor_;  ///< of the copy
  mutable std::once_flag once_[2];
  mutable std::unique_ptr<PackedWeights> packed_[2];
};

}  // namespace mlaprefill::cpu
