// The keys of all requests with new tokens, laid end to end: a pass is an interval of this stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mlaprefill/plan.h"

namespace mlaprefill {

/// Requests take round_up(keys, row_alignment) rows each. Legal cuts are the borders between requests and,
/// inside a request, multiples of `cut_tokens` from its first key.
class KeyStream {
 public:
  /// Refuses a workspace that holds less than one legal cut, or lengths that would take too many passes.
  static Result<KeyStream> create(const Plan& plan);

  size_t num_requests() const { return requests_.size(); }
  /// Row at which the i-th request of the stream starts; border(num_requests()) is the end of the stream.
  int64_t border(size_t i) const { return borders_[i]; }
  int64_t end() const { return borders_.back(); }
  int64_t capacity_rows() const { return capacity_rows_; }
  /// Every position is a legal cut.
  bool cuts_anywhere() const { return cut_tokens_ == 1; }

  /// The last legal cut at most a pass after `from`. `hint` is the index of a request that starts at or
  /// before the answer; it is moved up to the answer's.
  int64_t farthest_cut(int64_t from, size_t& hint) const;
  /// The first legal cut from which one pass reaches `to`. `hint` is moved down to the answer's request.
  int64_t nearest_cut_before(int64_t to, size_t& hint) const;

  /// The fewest passes: every one filled as far as a legal cut allows. The last cut is end().
  std::vector<int64_t> fill_cuts() const;

  /// Appends the joint passes that end at `cuts`.
  void emit(const std::vector<int64_t>& cuts, Plan& plan) const;

 private:
  KeyStream() = default;

  std::vector<int32_t> requests_;
  std::vector<int64_t> borders_;
  int64_t capacity_rows_ = 0;
  int64_t cut_tokens_ = 1;
};

}  // namespace mlaprefill
