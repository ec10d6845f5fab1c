// The tolerance every backend is held to.
#pragma once

#include <span>
#include <string>

#include "mlaprefill/backend.h"
#include "verify/oracle.h"

namespace mlaprefill::verify {

/// The element that came closest to its bound, or went furthest past it.
struct Deviation {
  double error = 0.0;
  double bound = 0.0;

  double ratio() const { return bound > 0.0 ? error / bound : (error > 0.0 ? 1e300 : 0.0); }
};

struct Comparison {
  Deviation out;
  Deviation lse;
  std::string failure;  ///< the first element out of tolerance; empty: none

  bool ok() const { return failure.empty(); }
  /// Takes over the worse deviations and the first failure.
  void add(const Comparison& other);
};

/// Holds out (and LSE, when given) at the expected rows against the oracle: NaN and inf at the same places;
/// elsewhere |out - exact| <= 2 * E + rounding_step(out dtype, exact), where E is the largest error of the
/// naive evaluation over these rows, and |lse - exact| <= 2 * E_lse + 2^-20 + 2^-23 * |exact|. Host memory.
Comparison compare(std::span<const ExpectedRow> expected, const ConstTensor& out, const ConstLseView& lse);

/// Largest relative error of rounding to `dtype`, times |value|.
double rounding_step(DType dtype, double value);

/// NaN and inf must match, finite values may differ by `bound`; notes the deviation of finite ones.
bool agrees(double exact, double got, double bound, Deviation& worst);

/// "where: must be exact within bound, got value".
std::string mismatch_text(const std::string& where, double exact, double bound, double got);

}  // namespace mlaprefill::verify
