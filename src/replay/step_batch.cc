#include "replay/step_batch.h"

#include <algorithm>

namespace mlaprefill {

void StepBatch::build(const Step& step, const Scheduler& scheduler) {
  query_start_loc_.assign(1, 0);
  context_lens_.clear();
  block_table_cols_ = 1;
  for (const PrefillRow& row : step.rows) {
    query_start_loc_.push_back(static_cast<int32_t>(query_start_loc_.back() + row.new_tokens));
    context_lens_.push_back(static_cast<int32_t>(row.context_tokens));
    block_table_cols_ = std::max(block_table_cols_, (row.context_tokens + block_tokens_ - 1) / block_tokens_);
  }
  block_table_.assign(step.rows.size() * static_cast<size_t>(block_table_cols_), -1);
  for (size_t r = 0; r < step.rows.size(); ++r) {
    const auto used = static_cast<size_t>((step.rows[r].context_tokens + block_tokens_ - 1) / block_tokens_);
    const auto blocks = scheduler.blocks_of(step.rows[r].request);
    std::copy_n(blocks.begin(), used, block_table_.begin() + static_cast<int64_t>(r) * block_table_cols_);
  }
}

void StepBatch::map_slots(const Step& step, const Scheduler& scheduler) {
  slot_mapping_.clear();
  for (const PrefillRow& row : step.rows) {
    const auto blocks = scheduler.blocks_of(row.request);
    for (int64_t i = 0; i < row.new_tokens; ++i) {
      const int64_t position = row.context_tokens + i;
      slot_mapping_.push_back(int64_t{blocks[static_cast<size_t>(position / block_tokens_)]} * block_tokens_ +
                              position % block_tokens_);
    }
  }
}

RaggedBatch StepBatch::lengths() const {
  RaggedBatch batch;
  batch.query_start_loc = query_start_loc_;
  batch.context_lens = context_lens_;
  batch.block_size = static_cast<int32_t>(block_tokens_);
  return batch;
}

RaggedBatch StepBatch::view() const {
  RaggedBatch batch = lengths();
  batch.block_table = {block_table_.data(), num_rows(), block_table_cols_, block_table_cols_};
  return batch;
}

}  // namespace mlaprefill
