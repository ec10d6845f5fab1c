// The one softmax of the reference: a query's running state over the keys it has seen, in fp64.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "mlaprefill/tensor.h"

namespace mlaprefill::reference {

struct SoftmaxState {
  explicit SoftmaxState(int64_t v_dim) : out(static_cast<size_t>(v_dim), 0.0) {}

  double max = -std::numeric_limits<double>::infinity();
  double sum = 0.0;
  std::vector<double> out;  ///< un-normalised
};

/// Keys and values of one head, row-major.
struct HeadKeys {
  std::vector<double> k;  ///< [keys, qk_dim]
  std::vector<double> v;  ///< [keys, v_dim]
  int64_t qk_dim = 0;
  int64_t v_dim = 0;
};

/// Folds keys [begin, end) into the state of the query `q` [qk_dim].
void absorb(const HeadKeys& keys, int64_t begin, int64_t end, const double* q, double scale,
            SoftmaxState& state);

/// What carrying the state in float32 does to it.
void round_to_float(SoftmaxState& state);

/// state.out / state.sum, or 0 when no key was seen.
double normalised(const SoftmaxState& state, int64_t d);

/// log(sum_j exp(logit_j)) in the wanted base; -inf when no key was seen.
double log_sum_exp(const SoftmaxState& state, LseBase base);

}  // namespace mlaprefill::reference
