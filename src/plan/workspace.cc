// Where things lie in the caller's workspace, and how large any plan's can get.
#include <algorithm>

#include "core/checked.h"
#include "core/error.h"
#include "plan/kv_splits.h"
#include "plan/metadata_size.h"
#include "plan/steps.h"

namespace mlaprefill {
namespace {

constexpr int64_t kAlignmentBytes = 256;

/// What the size of a workspace follows from.
struct Extents {
  Checked64 pass_rows = 0;
  int64_t state_rows = 0;
  int64_t kv_splits = 0;
  Checked64 metadata_bytes = 0;
};

/// Reserves regions one after the other, each at a multiple of kAlignmentBytes.
class RegionAllocator {
 public:
  int64_t reserve(Checked64 bytes) {
    const int64_t offset = end_.value();
    end_ = end_ + bytes + (kAlignmentBytes - 1);
    if (end_.valid()) end_ = round_down(end_.value(), kAlignmentBytes);
    return offset;
  }
  Checked64 end() const { return end_; }

 private:
  Checked64 end_ = 0;
};

Result<WorkspaceLayout> lay_out(const MlaDims& dims, DType working_dtype, const DeviceProperties& device,
                                const Extents& extents) {
  const Checked64 element_bytes = size_bytes(working_dtype);
  const Checked64 heads = dims.num_heads;
  const Checked64 state_bytes = Checked64(extents.state_rows) * heads * int64_t{sizeof(float)};
  RegionAllocator regions;
  WorkspaceLayout layout;
  layout.metadata_offset_bytes = regions.reserve(extents.metadata_bytes);
  layout.metadata_bytes = regions.end().value();
  layout.latent_offset_bytes = regions.reserve(element_bytes * extents.pass_rows * dims.latent_dim());
  layout.expanded_offset_bytes =
      regions.reserve(element_bytes * extents.pass_rows * heads * dims.expanded_head_dim());
  layout.state_out_offset_bytes = regions.reserve(state_bytes * dims.v_head_dim);
  layout.state_max_offset_bytes = regions.reserve(state_bytes);
  layout.state_sum_offset_bytes = regions.reserve(state_bytes);
  layout.partials_offset_bytes = regions.reserve(Checked64(extents.kv_splits) * device.query_tile_tokens *
                                                 partial_row_words(dims.v_head_dim) * int64_t{sizeof(float)});
  layout.max_kv_splits = extents.kv_splits;
  if (!regions.end().valid()) {
    return error(
        StatusCode::kLimitExceeded,
        "workspace: must be < 2^63 bytes, got more for passes of {} rows, {} heads and {} query rows",
        extents.pass_rows.valid() ? fmt::to_string(extents.pass_rows.value()) : ">= 2^63", dims.num_heads,
        extents.state_rows);
  }
  layout.total_bytes = regions.end().value();
  return layout;
}

bool carries_state(const Plan& plan) {
  return std::any_of(plan.spans.begin(), plan.spans.end(), [&](const Span& span) {
    const bool whole = span.first && span.last;
    return span.length() > 0 && !whole && plan.query_lens[static_cast<size_t>(span.request)] > 0;
  });
}

bool any_keys_may_be_split(const Plan& plan) {
  return !plan.options.invariant && std::any_of(plan.tiles.begin(), plan.tiles.end(), [](const Tile& tile) {
    return may_split_keys(tile.key_tiles);
  });
}

/// Most rows a pass of this family of plans can have.
Checked64 most_pass_rows(const PlanOptions& options, const DeviceProperties& device,
                         const PlanBounds& bounds) {
  const int64_t workspace = options.workspace_tokens;
  if (!reads_every_context(options.mode)) return workspace;

  const Checked64 requests = bounds.max_requests;
  const Checked64 padding = requests * (device.row_alignment_rows - 1);
  const Checked64 new_rows = padding + bounds.max_new_tokens_pass_rows;
  const Checked64 page = page_cut_tokens(options, device, bounds.block_size);
  if (options.mode == PlanMode::kVllm) return max(new_rows, max(workspace, page));
  return max(new_rows, max(workspace, requests * page) + padding);
}

Checked64 most_metadata_bytes(const PlanOptions& options, const DeviceProperties& device,
                              const PlanBounds& bounds, Checked64 pass_rows, int64_t kv_splits) {
  if (device.query_tile_tokens == 0) return 0;
  const Checked64 requests = bounds.max_requests;
  MetadataCounts counts{.passes = bounds.max_passes, .kv_splits = kv_splits};
  // A cut adds one span to those of the requests; even_split names every request in every pass.
  counts.spans =
      options.mode == PlanMode::kEvenSplit ? counts.passes * requests : requests * int64_t{2} + counts.passes;
  counts.tiles = counts.passes * (requests + bounds.max_query_rows / device.query_tile_tokens);
  const Checked64 keys = counts.passes * pass_rows;
  const int64_t block_size = std::max(bounds.block_size, 1);
  counts.blocks = keys.valid() ? requests + ceil_div(keys.value(), block_size) : keys;
  return metadata_size_bytes(counts);
}

Result<WorkspaceLayout> lay_out_bounds(const MlaDims& dims, const PlanOptions& options,
                                       const DeviceProperties& device, const PlanBounds& bounds) {
  const bool one_joint_pass = bounds.max_passes == 1 && !reads_every_context(options.mode);
  Extents extents;
  extents.pass_rows = most_pass_rows(options, device, bounds);
  extents.state_rows = one_joint_pass ? 0 : bounds.max_query_rows;
  extents.kv_splits = options.invariant || device.query_tile_tokens == 0 ? 0 : most_kv_splits(device);
  extents.metadata_bytes = most_metadata_bytes(options, device, bounds, extents.pass_rows, extents.kv_splits);
  return lay_out(dims, options.working_dtype, device, extents);
}

}  // namespace

Result<WorkspaceLayout> lay_out_workspace(const Plan& plan) {
  if (plan.options.bounds) return lay_out_bounds(plan.dims, plan.options, plan.device, *plan.options.bounds);
  int64_t pass_rows = 0;
  for (const Pass& pass : plan.passes) pass_rows = std::max(pass_rows, pass.rows);
  Extents extents;
  extents.pass_rows = pass_rows;
  extents.state_rows = carries_state(plan) ? plan.num_query_rows : 0;
  if (plan.device.query_tile_tokens > 0) {
    const auto count = [](const auto& records) { return static_cast<int64_t>(records.size()); };
    if (any_keys_may_be_split(plan)) extents.kv_splits = most_kv_splits(plan.device);
    extents.metadata_bytes = metadata_size_bytes(
        {count(plan.passes), count(plan.spans), count(plan.tiles), count(plan.blocks), extents.kv_splits});
  }
  return lay_out(plan.dims, plan.options.working_dtype, plan.device, extents);
}

Result<int64_t> workspace_upper_bound_bytes(const MlaDims& dims, const PlanOptions& options,
                                            const DeviceProperties& device, const PlanBounds& bounds) {
  MLAPREFILL_RETURN_IF_ERROR(validate(dims));
  MLAPREFILL_RETURN_IF_ERROR(validate(options));
  MLAPREFILL_RETURN_IF_ERROR(validate(device));
  MLAPREFILL_RETURN_IF_ERROR(validate(bounds, options, device));
  const Result<WorkspaceLayout> layout = lay_out_bounds(dims, options, device, bounds);
  if (!layout.ok()) return layout.status();
  return layout->total_bytes;
}

}  // namespace mlaprefill
