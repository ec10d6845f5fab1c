// Timing of one case, and of two cases against each other in one run.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/case.h"

namespace mlaprefill::bench {

struct Timing {
  std::vector<double> seconds;  ///< one entry a round

  double median() const;
  double min() const;
};

/// Median of ratios of paired rounds (seconds of A over seconds of B: > 1 when B is faster) with the interval
/// that holds the true median with at least 95 % confidence, from order statistics.
struct PairedRatio {
  double median = 0;
  double low = 0;
  double high = 0;
};

/// "better" or "worse" (B against A) when the whole interval clears `margin`, else "undecided".
std::string_view verdict(const PairedRatio& ratio, double margin);
PairedRatio paired_ratio(const Timing& a, const Timing& b);

/// Runs the cases in turn (A/B/A/B ...), each warmed first, `rounds` rounds of at least `min_seconds` a
/// sample. `progress` is told after every round.
Result<std::vector<Timing>> time_interleaved(const std::vector<Case*>& cases, int rounds, double min_seconds,
                                             const std::function<void(int round)>& progress);

}  // namespace mlaprefill::bench
