#include "replay/row_oracle.h"

#include <algorithm>
#include <cmath>

#include "core/float_formats.h"

namespace mlaprefill {
namespace {

constexpr double kBf16Step = 0x1.0p-8;
constexpr double kFloatStep = 0x1.0p-23;

float round_to_bf16(float value) { return float_from_bf16(bf16_from_float(value)); }

/// Expands keys of one head in float32, kKeys at a time. The weight is packed so that kColumns outputs of
/// kKeys keys stay in registers while the rank is walked.
class Expander {
 public:
  static constexpr int64_t kKeys = 4;
  static constexpr int64_t kColumns = 8;  // divides nope + v, which is a multiple of 16

  explicit Expander(const RowProblem& problem)
      : problem_(problem),
        rank_(problem.dims->kv_lora_rank),
        width_(problem.dims->expanded_head_dim()),
        weight_(static_cast<size_t>(rank_ * width_)),
        latents_(static_cast<size_t>(kKeys * rank_)),
        expanded_(static_cast<size_t>(kKeys * width_)) {
    for (int64_t column = 0; column < width_; ++column) {
      float* packed = weight_.data() + column / kColumns * kColumns * rank_ + column % kColumns;
      for (int64_t i = 0; i < rank_; ++i)
        packed[i * kColumns] = float_from_bf16(problem.weight[column * rank_ + i]);
    }
  }

  /// [kKeys, nope + v], rounded to bf16, of keys first .. first + count - 1; rows past count hold old values.
  const std::vector<float>& expand(int64_t first, int64_t count) {
    for (int64_t key = 0; key < count; ++key) {
      const uint16_t* latent = problem_.latent(first + key);
      for (int64_t i = 0; i < rank_; ++i)
        latents_[static_cast<size_t>(i * kKeys + key)] = float_from_bf16(latent[i]);
    }
    for (int64_t column = 0; column < width_; column += kColumns) expand_columns(column);
    return expanded_;
  }

 private:
  void expand_columns(int64_t column) {
    float sums[kKeys][kColumns] = {};
    const float* weight = weight_.data() + column * rank_;
    const float* latent = latents_.data();
    for (int64_t i = 0; i < rank_; ++i, weight += kColumns, latent += kKeys) {
      for (int64_t key = 0; key < kKeys; ++key) {
        for (int64_t c = 0; c < kColumns; ++c) sums[key][c] += latent[key] * weight[c];
      }
    }
    for (int64_t key = 0; key < kKeys; ++key) {
      for (int64_t c = 0; c < kColumns; ++c) {
        expanded_[static_cast<size_t>(key * width_ + column + c)] = round_to_bf16(sums[key][c]);
      }
    }
  }

  const RowProblem& problem_;
  int64_t rank_;
  int64_t width_;
  std::vector<float> weight_;   ///< [width / kColumns, rank, kColumns]
  std::vector<float> latents_;  ///< [rank, kKeys]
  std::vector<float> expanded_;
};

/// The logits of all keys in float64: scale * (query . key).
std::vector<double> exact_logits(const RowProblem& problem) {
  const MlaDims& dims = *problem.dims;
  const int64_t rank = dims.kv_lora_rank;
  std::vector<double> folded(static_cast<size_t>(dims.latent_dim()));
  for (int64_t column = 0; column < dims.qk_nope_head_dim; ++column) {
    const double q = float_from_bf16(problem.query[column]);
    const uint16_t* weight = problem.weight + column * rank;
    for (int64_t i = 0; i < rank; ++i) folded[static_cast<size_t>(i)] += q * float_from_bf16(weight[i]);
  }
  for (int64_t i = 0; i < dims.qk_rope_head_dim; ++i) {
    folded[static_cast<size_t>(rank + i)] = float_from_bf16(problem.query[dims.qk_nope_head_dim + i]);
  }
  std::vector<double> logits(static_cast<size_t>(problem.num_keys));
  for (int64_t key = 0; key < problem.num_keys; ++key) {
    const uint16_t* latent = problem.latent(key);
    double sum = 0.0;
    for (int64_t i = 0; i < dims.latent_dim(); ++i)
      sum += folded[static_cast<size_t>(i)] * float_from_bf16(latent[i]);
    logits[static_cast<size_t>(key)] = sum * dims.softmax_scale;
  }
  return logits;
}

}  // namespace

RowValue exact_row(const RowProblem& problem) {
  const MlaDims& dims = *problem.dims;
  const int64_t rank = dims.kv_lora_rank;
  RowValue value;
  value.logits = exact_logits(problem);
  const double max = *std::max_element(value.logits.begin(), value.logits.end());
  double sum = 0.0;
  std::vector<double> mean_latent(static_cast<size_t>(rank));
  for (int64_t key = 0; key < problem.num_keys; ++key) {
    const double p = std::exp(value.logits[static_cast<size_t>(key)] - max);
    const uint16_t* latent = problem.latent(key);
    sum += p;
    for (int64_t i = 0; i < rank; ++i) mean_latent[static_cast<size_t>(i)] += p * float_from_bf16(latent[i]);
  }
  value.lse = max + std::log(sum);
  value.out.resize(static_cast<size_t>(dims.v_head_dim));
  for (int64_t column = 0; column < dims.v_head_dim; ++column) {
    const uint16_t* weight = problem.weight + (dims.qk_nope_head_dim + column) * rank;
    double dot = 0.0;
    for (int64_t i = 0; i < rank; ++i)
      dot += mean_latent[static_cast<size_t>(i)] * float_from_bf16(weight[i]);
    value.out[static_cast<size_t>(column)] = dot / sum;
  }
  return value;
}

RowTolerance row_tolerance(const RowProblem& problem, const RowValue& exact) {
  const MlaDims& dims = *problem.dims;
  // One maximum for the whole row: it only keeps the exponentials in range.
  const double max = *std::max_element(exact.logits.begin(), exact.logits.end());
  Expander expander(problem);
  double logit_error = 0.0;
  float sum = 0.0f;
  std::vector<float> out(static_cast<size_t>(dims.v_head_dim));
  for (int64_t first = 0; first < problem.num_keys; first += Expander::kKeys) {
    const int64_t count = std::min(Expander::kKeys, problem.num_keys - first);
    const std::vector<float>& expanded = expander.expand(first, count);
    for (int64_t key = 0; key < count; ++key) {
      const float* row = expanded.data() + key * dims.expanded_head_dim();
      const uint16_t* rope = problem.latent(first + key) + dims.kv_lora_rank;
      float dot = 0.0f;
      for (int64_t i = 0; i < dims.qk_nope_head_dim; ++i) dot += float_from_bf16(problem.query[i]) * row[i];
      for (int64_t i = 0; i < dims.qk_rope_head_dim; ++i) {
        dot += float_from_bf16(problem.query[dims.qk_nope_head_dim + i]) * float_from_bf16(rope[i]);
      }
      const float logit = dot * static_cast<float>(dims.softmax_scale);
      logit_error =
          std::max(logit_error, std::abs(double{logit} - exact.logits[static_cast<size_t>(first + key)]));
      const float p = std::exp(logit - static_cast<float>(max));
      sum += p;
      const float rounded = round_to_bf16(p);
      for (int64_t i = 0; i < dims.v_head_dim; ++i) {
        out[static_cast<size_t>(i)] += rounded * row[dims.qk_nope_head_dim + i];
      }
    }
  }
  double out_error = 0.0;
  double out_max = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    out_error = std::max(out_error, std::abs(double{round_to_bf16(out[i] / sum)} - exact.out[i]));
    out_max = std::max(out_max, std::abs(exact.out[i]));
  }
  return {.out = 2.0 * out_error + kBf16Step * out_max,
          .lse = 2.0 * logit_error + kFloatStep * std::max(1.0, std::abs(exact.lse))};
}

}  // namespace mlaprefill
