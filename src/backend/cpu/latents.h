// Latents of a batch's keys, gathered from the paged cache and the new tokens once for all heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cpu/flash.h"
#include "backend/cpu/weights.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {

/// Reads latent rows of the plan's requests.
class LatentSource {
 public:
  LatentSource(const Plan& plan, const KvCache& cache, const ConstTensor& kv_latent,
               const ConstTensor& k_rope);

  /// Where converted rows go.
  struct Target {
    const KernelTable* kernels = nullptr;
    std::byte* data = nullptr;
    int64_t stride = 0;
    int64_t padded_columns = 0;
  };

  /// Keys [key_begin, key_end) of a request: latents to one target, rope keys to the other, both rounded to
  /// the working dtype.
  void read(int64_t request, int64_t key_begin, int64_t key_end, Target latents, Target rope) const;

 private:
  void read_cached(int64_t block, int64_t offset, int64_t rows, Target& latents, Target& rope) const;
  void read_new(int64_t row, int64_t rows, Target& latents, Target& rope) const;
  void read_packed(int64_t block, int64_t offset, int64_t rows, Target& latents, Target& rope) const;
  void convert(const ConstTensor& rows, int64_t columns, Target& target) const;

  const Plan& plan_;
  const KvCache& cache_;
  const ConstTensor& kv_latent_;
  const ConstTensor& k_rope_;
  float f8_values_[256];
};

/// Consecutive requests whose keys lie one after the other in the store and are attended as one: alone, or
/// several short ones where results need not be independent of their neighbours.
struct RequestGroup {
  int64_t first_request = 0;
  int64_t end_request = 0;
  int64_t key_begin = 0;  ///< in the store, a multiple of 64
  int64_t keys = 0;
  int64_t query_row = 0;
  int64_t queries = 0;
};

/// Groups of the plan's requests that have new tokens, in request order.
void group_requests(const Plan& plan, std::vector<RequestGroup>& groups);

/// The latents of every group: row-major rows in the up-projection's operand type, rope panels in the
/// attention's.
class LatentStore {
 public:
  void prepare(const PackedWeights& weights, const KernelTable& attention_kernels, const MlaDims& dims,
               int64_t keys);
  /// Gathers 64 keys of the store, from `key` on, of which the group has some.
  void fill(const LatentSource& source, const Plan& plan, const RequestGroup& group, int64_t key);

  const std::byte* rows(int64_t key) const { return rows_ + key * row_stride_ * operand_bytes_; }
  int64_t row_stride() const { return row_stride_; }
  const std::byte* rope_panel(int64_t key) const {
    return rope_panels_ + key / kPanelColumns * rope_panel_bytes_;
  }

 private:
  const KernelTable* kernels_ = nullptr;
  const KernelTable* attention_kernels_ = nullptr;
  int64_t operand_bytes_ = 0;
  int64_t padded_rank_ = 0;
  int64_t row_stride_ = 0;
  int64_t rope_columns_ = 0;
  int64_t padded_rope_ = 0;
  int64_t rope_panel_bytes_ = 0;
  std::byte* rows_ = nullptr;
  std::byte* rope_panels_ = nullptr;
  std::byte* rope_rows_ = nullptr;
  AlignedBuffer row_buffer_, rope_panel_buffer_, rope_row_buffer_;
};

}  // namespace mlaprefill::cpu
