// Attention of one head, chunk of keys by chunk of keys, in fp64 or in a plain working precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/float_formats.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill::verify {

/// `Number` is double for the exact answer, float for the naive one; only the latter rounds.
template <typename Number>
class Arithmetic {
 public:
  explicit Arithmetic(DType working) : working_(working) {}

  Number round(Number value) const { return round_to(working_, value); }

  static Number round_to(DType dtype, Number value) {
    if constexpr (std::is_same_v<Number, double>) {
      return value;
    } else {
      if (dtype == DType::kF32) return value;
      uint16_t bits = 0;
      store_float(&bits, dtype, 0, value);
      return load_float(&bits, dtype, 0);
    }
  }

 private:
  DType working_;
};

/// Some keys and values of one head, row-major.
template <typename Number>
struct KeyChunk {
  int64_t count = 0;
  std::vector<Number> k;  ///< [count, qk_dim]
  std::vector<Number> v;  ///< [count, v_dim]
};

/// One query's softmax over the keys it has seen so far.
template <typename Number>
class QueryState {
 public:
  QueryState(std::vector<Number> q, int64_t v_dim) : q_(std::move(q)), out_(static_cast<size_t>(v_dim)) {}

  /// Sees the first `visible` keys of the chunk.
  void see(const KeyChunk<Number>& keys, int64_t visible, double scale,
           const Arithmetic<Number>& arithmetic) {
    if (visible <= 0) return;
    const auto qk_dim = static_cast<int64_t>(q_.size());
    const auto v_dim = static_cast<int64_t>(out_.size());
    std::vector<Number> logits(static_cast<size_t>(visible));
    Number max = max_;
    for (int64_t j = 0; j < visible; ++j) {
      Number dot = 0;
      for (int64_t d = 0; d < qk_dim; ++d)
        dot += q_[static_cast<size_t>(d)] * keys.k[static_cast<size_t>(j * qk_dim + d)];
      const Number logit = static_cast<Number>(scale) * dot;
      logits[static_cast<size_t>(j)] = logit;
      if (logit > max) max = logit;
    }
    if (max != max_) {
      const Number kept = std::exp(max_ - max);
      sum_ *= kept;
      for (Number& value : out_) value *= kept;
      max_ = max;
    }
    for (int64_t j = 0; j < visible; ++j) {
      const Number logit = logits[static_cast<size_t>(j)];
      const Number weight = logit == -kInfinity ? Number{0} : std::exp(logit - max_);
      sum_ += weight;
      const Number rounded = arithmetic.round(weight);
      for (int64_t d = 0; d < v_dim; ++d) {
        out_[static_cast<size_t>(d)] += rounded * keys.v[static_cast<size_t>(j * v_dim + d)];
      }
    }
  }

  std::vector<double> result(DType out_dtype) const {
    std::vector<double> values;
    for (Number value : out_) {
      const Number quotient = sum_ == 0 ? Number{0} : value / sum_;
      values.push_back(Arithmetic<Number>::round_to(out_dtype, quotient));
    }
    return values;
  }

  double lse() const { return sum_ == 0 ? -kInfinity : max_ + std::log(sum_); }

 private:
  static constexpr Number kInfinity = std::numeric_limits<Number>::infinity();

  std::vector<Number> q_;
  std::vector<Number> out_;
  Number max_ = -kInfinity;
  Number sum_ = 0;
};

}  // namespace mlaprefill::verify
