// Seeded random numbers that are the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace mlaprefill {

/// A good 64-bit mix of one value.
constexpr uint64_t mix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

/// A hash of several values, in order.
template <typename... Values>
constexpr uint64_t mix64(uint64_t first, Values... rest) {
  return mix64(first) ^ (mix64(static_cast<uint64_t>(rest)...) * 3);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix64(seed)) {}

  uint64_t next() { return mix64(state_++); }
  /// Uniform in [0, bound), bound > 0; the bias of the remainder is below bound / 2^64.
  int64_t below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }
  /// Uniform in (0, 1].
  double uniform() { return static_cast<double>((next() >> 11) + 1) * 0x1.0p-53; }
  double normal() {
    return std::sqrt(-2.0 * std::log(uniform())) * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace mlaprefill
