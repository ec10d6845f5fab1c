// Appends passes and spans to a plan, keeping what follows from them (rows, flags, activity) in one place.
#pragma once

#include <cstdint>

#include "core/checked.h"
#include "mlaprefill/plan.h"

namespace mlaprefill {

class PassBuilder {
 public:
  explicit PassBuilder(Plan& plan) : plan_(plan) {}

  void open(PassKind kind) {
    const int64_t span = static_cast<int64_t>(plan_.spans.size());
    plan_.passes.push_back({.kind = kind, .rows = 0, .span_begin = span, .span_end = span});
  }

  /// Workspace row at which the next span of the open pass starts.
  int64_t next_row() const { return round_up(plan_.passes.back().rows, plan_.device.row_alignment_rows); }

  /// Adds keys [key_begin, key_end) of a request to the open pass.
  void add(int32_t request, int64_t key_begin, int64_t key_end) {
    const size_t r = static_cast<size_t>(request);
    const int64_t query_len = plan_.query_lens[r];
    const bool has_keys = key_end > key_begin;
    Pass& pass = plan_.passes.back();
    const int64_t row = next_row();
    plan_.spans.push_back({
        .key_begin = key_begin,
        .key_end = key_end,
        .row_begin = row,
        .request = request,
        .continuation = key_begin > 0 && pass.kind != PassKind::kNew,
        .first = has_keys && key_begin == 0,
        .last = has_keys && key_end == plan_.context_lens[r] + query_len,
    });
    if (has_keys) pass.rows = row + key_end - key_begin;
    pass.all_rows_active = pass.all_rows_active && has_keys && query_len > 0;
    ++pass.span_end;
  }

 private:
  Plan& plan_;
};

}  // namespace mlaprefill
