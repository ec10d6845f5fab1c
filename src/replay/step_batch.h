// A scheduler's step as the planner and the cache want it: lengths, block table, slots.
#pragma once

#include <cstdint>
#include <vector>

#include "mlaprefill/plan.h"
#include "replay/scheduler.h"

namespace mlaprefill {

/// The ragged batch of a step. Owns the arrays its view points to; reused from step to step.
class StepBatch {
 public:
  explicit StepBatch(int64_t block_tokens) : block_tokens_(block_tokens) {}

  void build(const Step& step, const Scheduler& scheduler);
  /// Fills slot_mapping() for the step last built; plans alone do not need it.
  void map_slots(const Step& step, const Scheduler& scheduler);

  RaggedBatch view() const;
  /// The same without a block table.
  RaggedBatch lengths() const;

  int64_t num_rows() const { return static_cast<int64_t>(context_lens_.size()); }
  int64_t num_tokens() const { return query_start_loc_.back(); }
  int64_t query_start(int64_t row) const { return query_start_loc_[static_cast<size_t>(row)]; }
  /// Cache slot of every new token.
  const std::vector<int64_t>& slot_mapping() const { return slot_mapping_; }

 private:
  int64_t block_tokens_;
  std::vector<int32_t> query_start_loc_{0};
  std::vector<int32_t> context_lens_;
  std::vector<int32_t> block_table_;
  int64_t block_table_cols_ = 0;
  std::vector<int64_t> slot_mapping_;
};

}  // namespace mlaprefill
