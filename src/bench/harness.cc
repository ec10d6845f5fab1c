#include "bench/harness.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/error.h"

namespace mlaprefill::bench {
namespace {

using Clock = std::chrono::steady_clock;

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

// Largest number of extreme values that may be cut at each end so that the rest still covers the median with
// 95 % confidence: P(Binomial(n, 1/2) <= cut - 1) <= 2.5 %.
size_t confidence_cut(size_t n) {
  double probability = std::pow(0.5, static_cast<double>(n));
  double tail = 0;
  size_t cut = 0;
  for (; cut < n / 2; ++cut) {
    tail += probability;
    if (tail > 0.025) break;
    probability *= static_cast<double>(n - cut) / static_cast<double>(cut + 1);
  }
  return cut == 0 ? 0 : cut - 1;
}

Result<double> time_sample(Case& subject, int64_t repeats) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < repeats; ++i) MLAPREFILL_RETURN_IF_ERROR(subject.run());
  MLAPREFILL_RETURN_IF_ERROR(subject.wait());
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(repeats);
}

}  // namespace

double Timing::median() const { return median_of(seconds); }
double Timing::min() const { return *std::min_element(seconds.begin(), seconds.end()); }

PairedRatio paired_ratio(const Timing& a, const Timing& b) {
  std::vector<double> ratios(a.seconds.size());
  for (size_t i = 0; i < ratios.size(); ++i) ratios[i] = a.seconds[i] / b.seconds[i];
  std::sort(ratios.begin(), ratios.end());
  const size_t cut = confidence_cut(ratios.size());
  return {median_of(ratios), ratios[cut], ratios[ratios.size() - 1 - cut]};
}

std::string_view verdict(const PairedRatio& ratio, double margin) {
  if (ratio.low > 1.0 + margin) return "better";
  if (ratio.high < 1.0 - margin) return "worse";
  return "undecided";
}

Result<std::vector<Timing>> time_interleaved(const std::vector<Case*>& cases, int rounds, double min_seconds,
                                             const std::function<void(int round)>& progress) {
  std::vector<int64_t> repeats;
  for (Case* subject : cases) {
    MLAPREFILL_RETURN_IF_ERROR(subject->run());
    auto once = time_sample(*subject, 1);
    if (!once.ok()) return once.status();
    repeats.push_back(std::max<int64_t>(1, static_cast<int64_t>(std::ceil(min_seconds / once.value()))));
  }
  std::vector<Timing> timings(cases.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < cases.size(); ++i) {
      auto sample = time_sample(*cases[i], repeats[i]);
      if (!sample.ok()) return sample.status();
      timings[i].seconds.push_back(sample.value());
    }
    progress(round);
  }
  return timings;
}

}  // namespace mlaprefill::bench
