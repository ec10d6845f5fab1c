#include "verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/float_formats.h"
#include "core/tensor_access.h"

namespace mlaprefill::verify {
namespace {

struct NaiveErrors {
  double out = 0.0;
  double lse = 0.0;
};

void raise_to(double exact, double naive, double& error) {
  if (std::isfinite(exact) && std::isfinite(naive)) error = std::max(error, std::fabs(naive - exact));
}

NaiveErrors naive_errors(std::span<const ExpectedRow> expected) {
  NaiveErrors errors;
  for (const ExpectedRow& row : expected) {
    for (size_t d = 0; d < row.out.size(); ++d) raise_to(row.out[d], row.naive_out[d], errors.out);
    raise_to(row.lse, row.naive_lse, errors.lse);
  }
  return errors;
}

void keep_worse(const Deviation& candidate, Deviation& worst) {
  if (candidate.ratio() > worst.ratio() || worst.bound == 0.0) worst = candidate;
}

}  // namespace

void Comparison::add(const Comparison& other) {
  keep_worse(other.out, out);
  keep_worse(other.lse, lse);
  if (failure.empty()) failure = other.failure;
}

double rounding_step(DType dtype, double value) {
  const double magnitude = std::fabs(value);
  switch (dtype) {
    case DType::kBF16:
      return magnitude * 0x1p-8;
    case DType::kF16:
      return std::max(magnitude * 0x1p-11, 0x1p-25);
    default:
      return magnitude * 0x1p-24;
  }
}

bool agrees(double exact, double got, double bound, Deviation& worst) {
  if (std::isnan(exact) || std::isnan(got)) return std::isnan(exact) && std::isnan(got);
  if (std::isinf(exact) || std::isinf(got)) return exact == got;
  const double error = std::fabs(got - exact);
  keep_worse({error, bound}, worst);
  return error <= bound;
}

std::string mismatch_text(const std::string& where, double exact, double bound, double got) {
  return fmt::format("{}: must be {:.9g} within {:.3g}, got {:.9g}", where, exact, bound, got);
}

Comparison compare(std::span<const ExpectedRow> expected, const ConstTensor& out, const ConstLseView& lse) {
  const NaiveErrors naive = naive_errors(expected);
  Comparison comparison;
  for (const ExpectedRow& row : expected) {
    const auto [token, head] = row.at;
    const void* got = element_address(out, token, head);
    for (size_t d = 0; d < row.out.size(); ++d) {
      const double value = load_float(got, out.dtype, static_cast<int64_t>(d));
      const double bound = 2.0 * naive.out + rounding_step(out.dtype, row.out[d]);
      if (!agrees(row.out[d], value, bound, comparison.out) && comparison.ok()) {
        comparison.failure =
            mismatch_text(fmt::format("out[{}, {}, {}]", token, head, d), row.out[d], bound, value);
      }
    }
    if (lse.data == nullptr) continue;
    double value = lse.data[head * lse.head_stride + token * lse.token_stride];
    if (lse.base == LseBase::kLog2) value *= std::numbers::ln2;
    const double bound = 2.0 * naive.lse + 0x1p-20 + 0x1p-23 * std::fabs(row.lse);
    if (!agrees(row.lse, value, bound, comparison.lse) && comparison.ok()) {
      comparison.failure = mismatch_text(fmt::format("lse[{}, {}]", head, token), row.lse, bound, value);
    }
  }
  return comparison;
}

}  // namespace mlaprefill::verify
