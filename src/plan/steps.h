// The steps of make_plan, in the order plan.cc calls them. Each fills its own fields of the plan.
#pragma once

#include <cstdint>

#include "mlaprefill/plan.h"

namespace mlaprefill {

/// Spans a plan may hold beside one for each request; keeps hostile lengths from asking for all memory.
inline constexpr int64_t kMaxSplitSpans = int64_t{1} << 22;
inline constexpr int64_t kMaxTiles = int64_t{1} << 24;

Status validate(const PlanOptions& options);
Status validate(const DeviceProperties& device);
Status validate(const RaggedBatch& batch, const PlanOptions& options);
Status validate(const PlanBounds& bounds, const PlanOptions& options, const DeviceProperties& device);

/// Modes vllm and even_split read the context of every request; the others that of requests with new tokens.
constexpr bool reads_every_context(PlanMode mode) {
  return mode == PlanMode::kVllm || mode == PlanMode::kEvenSplit;
}

/// Copies lengths and the used block ids, checking each id.
Status copy_batch(const RaggedBatch& batch, Plan& plan);

/// Fills passes and spans by the plan's mode.
Status plan_bridge(Plan& plan);
Status plan_min_continuation(Plan& plan);
Status plan_vllm(Plan& plan);
Status plan_even_split(Plan& plan);

/// `strict`: a batch, or a pass, with an inactive row is refused by name.
Status refuse_mixed_batch(const Plan& plan);
Status refuse_inactive_passes(const Plan& plan);

/// Cuts the queries of every span into tiles, those with most key tiles first in each pass.
Status add_tiles(Plan& plan);

PlanCost count_cost(const Plan& plan);

/// With PlanOptions::bounds: refuses a plan beyond them and appends empty passes up to their number.
Status fill_to_bounds(Plan& plan);

/// The workspace of a finished plan: as small as it can be, or that of its bounds.
Result<WorkspaceLayout> lay_out_workspace(const Plan& plan);

/// Context cuts of modes vllm and even_split are multiples of this: a cache block, and in invariant plans a
/// key tile too.
int64_t page_cut_tokens(const PlanOptions& options, const DeviceProperties& device, int64_t block_size);

/// Cuts of modes bridge and min_continuation inside a request are multiples of this.
int64_t joint_cut_tokens(const PlanOptions& options, const DeviceProperties& device);

}  // namespace mlaprefill
