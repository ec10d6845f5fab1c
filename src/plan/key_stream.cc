#include "plan/key_stream.h"

#include <algorithm>
#include <numeric>

#include "core/checked.h"
#include "core/error.h"
#include "plan/pass_builder.h"
#include "plan/steps.h"

namespace mlaprefill {

int64_t joint_cut_tokens(const PlanOptions& options, const DeviceProperties& device) {
  const int64_t key_tile = options.invariant ? device.key_tile_tokens : 1;
  return std::lcm(int64_t{device.row_alignment_rows}, key_tile);
}

Result<KeyStream> KeyStream::create(const Plan& plan) {
  const int64_t alignment = plan.device.row_alignment_rows;
  const int64_t workspace = plan.options.workspace_tokens;
  KeyStream stream;
  stream.cut_tokens_ = joint_cut_tokens(plan.options, plan.device);
  if (workspace < stream.cut_tokens_) {
    return error(
        StatusCode::kLimitExceeded, "workspace_tokens: must be >= {} {}, got {}", stream.cut_tokens_,
        plan.options.invariant ? "(a key tile, as `invariant` cuts only there)" : "(row_alignment_rows)",
        workspace);
  }

  stream.requests_.reserve(plan.query_lens.size());
  stream.borders_.reserve(plan.query_lens.size() + 1);
  stream.borders_.push_back(0);
  for (size_t r = 0; r < plan.query_lens.size(); ++r) {
    if (plan.query_lens[r] == 0) continue;
    const int64_t keys = int64_t{plan.context_lens[r]} + plan.query_lens[r];
    stream.requests_.push_back(static_cast<int32_t>(r));
    stream.borders_.push_back(stream.end() + round_up(keys, alignment));
  }
  stream.capacity_rows_ = std::min(round_down(workspace, alignment), std::max(stream.end(), alignment));

  if (ceil_div(stream.end(), stream.capacity_rows_) > kMaxSplitSpans) {
    return error(StatusCode::kLimitExceeded,
                 "workspace_tokens: must be >= {} for {} tokens in at most {} passes, got {}",
                 ceil_div(stream.end(), kMaxSplitSpans), stream.end(), kMaxSplitSpans, workspace);
  }
  return stream;
}

int64_t KeyStream::farthest_cut(int64_t from, size_t& hint) const {
  const int64_t target = from + capacity_rows_;
  if (target >= end()) return end();
  while (borders_[hint + 1] <= target) ++hint;
  return borders_[hint] + round_down(target - borders_[hint], cut_tokens_);
}

int64_t KeyStream::nearest_cut_before(int64_t to, size_t& hint) const {
  const int64_t target = std::max<int64_t>(to - capacity_rows_, 0);
  while (borders_[hint] > target) --hint;
  return std::min(borders_[hint] + round_up(target - borders_[hint], cut_tokens_), borders_[hint + 1]);
}

std::vector<int64_t> KeyStream::fill_cuts() const {
  std::vector<int64_t> cuts;
  if (requests_.empty()) return cuts;
  cuts.reserve(static_cast<size_t>(ceil_div(end(), capacity_rows_)));
  size_t hint = 0;
  for (int64_t cut = 0; cut < end();) {
    cut = farthest_cut(cut, hint);
    cuts.push_back(cut);
  }
  return cuts;
}

void KeyStream::emit(const std::vector<int64_t>& cuts, Plan& plan) const {
  plan.passes.reserve(cuts.size());
  plan.spans.reserve(requests_.size() + cuts.size());
  PassBuilder builder(plan);
  size_t i = 0;
  int64_t position = 0;
  for (int64_t cut : cuts) {
    builder.open(PassKind::kJoint);
    while (position < cut) {
      const size_t r = static_cast<size_t>(requests_[i]);
      const int64_t keys = int64_t{plan.context_lens[r]} + plan.query_lens[r];
      const int64_t stop = std::min(cut, borders_[i + 1]);
      builder.add(requests_[i], position - borders_[i], std::min(stop - borders_[i], keys));
      position = stop;
      if (position == borders_[i + 1]) ++i;
    }
  }
}

}  // namespace mlaprefill
