#include "backend/reference/online_softmax.h"

#include <cmath>
#include <numbers>

namespace mlaprefill::reference {
namespace {

// g++ 12.2 at -O2 drops `x = static_cast<float>(x)` on two adjacent doubles; volatile keeps the rounding.
double rounded_to_float(double value) {
  const volatile float rounded = static_cast<float>(value);
  return rounded;
}

}  // namespace

void absorb(const HeadKeys& keys, int64_t begin, int64_t end, const double* q, double scale,
            SoftmaxState& state) {
  if (begin >= end) return;
  std::vector<double> logits(static_cast<size_t>(end - begin));
  double max = state.max;
  for (int64_t j = begin; j < end; ++j) {
    const double* k = keys.k.data() + j * keys.qk_dim;
    double dot = 0.0;
    for (int64_t d = 0; d < keys.qk_dim; ++d) dot += q[d] * k[d];
    const double logit = scale * dot;
    logits[static_cast<size_t>(j - begin)] = logit;
    if (logit > max) max = logit;
  }
  const double kept = state.max == max ? 1.0 : std::exp(state.max - max);
  state.max = max;
  state.sum *= kept;
  for (double& value : state.out) value *= kept;
  for (int64_t j = begin; j < end; ++j) {
    const double logit = logits[static_cast<size_t>(j - begin)];
    const double weight = std::isinf(logit) && logit < 0 ? 0.0 : std::exp(logit - max);
    const double* v = keys.v.data() + j * keys.v_dim;
    state.sum += weight;
    for (int64_t d = 0; d < keys.v_dim; ++d) state.out[static_cast<size_t>(d)] += weight * v[d];
  }
}

void round_to_float(SoftmaxState& state) {
  state.max = rounded_to_float(state.max);
  state.sum = rounded_to_float(state.sum);
  for (double& value : state.out) value = rounded_to_float(value);
}

double normalised(const SoftmaxState& state, int64_t d) {
  return state.sum == 0.0 ? 0.0 : state.out[static_cast<size_t>(d)] / state.sum;
}

double log_sum_exp(const SoftmaxState& state, LseBase base) {
  if (state.sum == 0.0) return -std::numeric_limits<double>::infinity();
  const double natural = state.max + std::log(state.sum);
  return base == LseBase::kLog2 ? natural * std::numbers::log2e : natural;
}

}  // namespace mlaprefill::reference
