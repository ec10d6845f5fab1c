// Mode min_continuation: as few passes as bridge, then as few requests cut in two as that allows.
//
// With N passes there are N - 1 cuts. Cut k lies in a window [earliest[k], latest[k]]: far enough for the
// rest to fit N - k passes, and reachable with k. The windows are disjoint, since a position in two of them
// would save a pass. So a border between requests can serve as one particular cut only, and the question is
// which borders can serve together: border b of window k and a later border b' of window k' can when filling
// k' - k passes from b gets to b' or beyond. Filling is monotone (who starts farther gets at least as far),
// hence the best start for c borders is the one that gets farthest, and the longest chain is found as a
// longest non-decreasing subsequence is: for every c keep the best chain, find each border's place by
// bisection. O(R log R) where every position is a legal cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/error.h"
#include "plan/key_stream.h"
#include "plan/steps.h"

namespace mlaprefill {
namespace {

constexpr size_t kStepsPerPass = 16;

/// A border chosen as cut `window`, after the chain `previous`.
struct Link {
  int64_t position = 0;
  size_t window = 0;
  size_t previous = 0;
};

/// How far the best chain of some number of borders gets by filling passes up to `window`.
struct Front {
  int64_t position = 0;
  size_t window = 0;
  size_t link = 0;
};

class BorderChain {
 public:
  BorderChain(const KeyStream& stream, std::vector<int64_t> latest)
      : stream_(stream),
        latest_(std::move(latest)),
        fill_budget_(kStepsPerPass * (stream.num_requests() + latest_.size())) {
    fronts_.push_back({});
    links_.push_back({});
  }

  /// Cuts with the most borders among them. Where legal cuts are coarser than a token (invariant plans,
  /// aligned rows) filling takes a step a pass; once the steps are more than linear in requests and passes,
  /// the search stops and the answer is the better of what it has and of the latest cuts.
  std::vector<int64_t> solve() {
    find_earliest_cuts();
    bool within_budget = true;
    for (size_t window = 1; window < latest_.size() && within_budget; ++window) {
      size_t i = earliest_request_[window - 1];
      while (stream_.border(i) < earliest_[window - 1]) ++i;
      for (; stream_.border(i) <= latest_[window - 1] && within_budget; ++i) {
        within_budget = append(stream_.border(i), window);
      }
    }
    std::vector<int64_t> cuts = cuts_of_best_chain();
    return within_budget || count_borders(cuts) > count_borders(latest_) ? cuts : latest_;
  }

 private:
  void find_earliest_cuts() {
    size_t request = stream_.num_requests() - 1;
    earliest_.assign(latest_.size(), stream_.end());
    earliest_request_.assign(latest_.size(), request);
    for (size_t k = latest_.size() - 1; k > 0; --k) {
      earliest_[k - 1] = stream_.nearest_cut_before(earliest_[k], request);
      earliest_request_[k - 1] = request;
    }
  }

  /// Fills passes from the front until it stands at `window`; false when the budget is spent.
  bool advance(Front& front, size_t window) {
    if (stream_.cuts_anywhere()) {
      const int64_t passes = static_cast<int64_t>(window - front.window);
      front.position = std::min(front.position + passes * stream_.capacity_rows(), stream_.end());
      front.window = window;
      return true;
    }
    for (; front.window < window; ++front.window) {
      if (fill_budget_-- == 0) return false;
      size_t hint = earliest_request_[front.window];
      front.position = stream_.farthest_cut(front.position, hint);
    }
    return true;
  }

  /// Borders of a window come in increasing order, so that none follows another of its own window.
  bool append(int64_t border, size_t window) {
    size_t low = 0;  // fronts_[low] reaches the border, fronts_[high] does not
    size_t high = fronts_.size();
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      if (!advance(fronts_[middle], window)) return false;
      (fronts_[middle].position >= border ? low : high) = middle;
    }
    links_.push_back({border, window, fronts_[low].link});
    if (high == fronts_.size()) fronts_.push_back({});
    fronts_[high] = {border, window, links_.size() - 1};
    return true;
  }

  std::vector<int64_t> cuts_of_best_chain() const {
    std::vector<size_t> chain;
    for (size_t link = fronts_.back().link; link != 0; link = links_[link].previous) chain.push_back(link);
    std::vector<int64_t> cuts;
    cuts.reserve(latest_.size());
    int64_t cut = 0;
    size_t hint = 0;
    for (size_t window = 1; window <= latest_.size(); ++window) {
      const bool at_border = !chain.empty() && links_[chain.back()].window == window;
      cut = at_border ? links_[chain.back()].position : stream_.farthest_cut(cut, hint);
      if (at_border) chain.pop_back();
      cuts.push_back(cut);
    }
    return cuts;
  }

  size_t count_borders(const std::vector<int64_t>& cuts) const {
    size_t borders = 0;
    size_t i = 0;
    for (int64_t cut : cuts) {
      while (stream_.border(i) < cut) ++i;
      borders += stream_.border(i) == cut;
    }
    return borders;
  }

  const KeyStream& stream_;
  const std::vector<int64_t> latest_;  ///< cut k of the plan with the fewest passes, at index k - 1
  std::vector<int64_t> earliest_;
  std::vector<size_t> earliest_request_;  ///< a request that starts at or before the earliest cut
  size_t fill_budget_;
  std::vector<Front> fronts_;  ///< by number of borders; [0] is the start of the stream
  std::vector<Link> links_;    ///< [0] is the start of every chain
};

}  // namespace

Status plan_min_continuation(Plan& plan) {
  const Result<KeyStream> stream = KeyStream::create(plan);
  if (!stream.ok()) return stream.status();
  std::vector<int64_t> cuts = stream->fill_cuts();
  if (cuts.size() > 1) cuts = BorderChain(stream.value(), std::move(cuts)).solve();
  stream->emit(cuts, plan);
  return {};
}

}  // namespace mlaprefill
