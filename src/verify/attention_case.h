// Plain ragged attention on random inputs, held to the oracle.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "verify/report.h"

namespace mlaprefill::verify {

struct AttentionCase {
  struct Lengths {
    int64_t queries;
    int64_t keys;
  };

  std::string name{};
  std::vector<Lengths> requests{};
  DType dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  int64_t heads = 2;
  int64_t kv_heads = 2;
  int64_t nope = 128;  ///< per-head key dims
  int64_t rope = 64;   ///< key dims shared by all heads, 0: no k_rope tensor
  int64_t v_dim = 128;
  bool causal = true;
  double softmax_scale = 0.07;
  LseLayout lse_layout = LseLayout::kHeadMajor;
  LseBase lse_base = LseBase::kNatural;
  bool sliced = false;        ///< q, out: slices of wider rows; k and v: two slices of one tensor
  int64_t padding_rows = 0;   ///< rows of no request after each request, in q and k
  float logit_spread = 1.0f;  ///< scales q
};

/// The inputs of a case, made once and given to any number of backends.
class AttentionInputs {
 public:
  explicit AttentionInputs(const AttentionCase& attention_case);

  AttentionCase config;
  HostTensor q;
  HostTensor kv;  ///< [k rows, kv_heads, nope + v]: what k and v are slices of; else k alone
  HostTensor k_rope;
  HostTensor v;  ///< used unless config.sliced
  std::vector<AttentionSpan> spans;

  /// Arguments over views of the four inputs and these outputs.
  AttentionArgs args(const ConstTensor& q_view, const ConstTensor& kv_view, const ConstTensor& rope_view,
                     const ConstTensor& v_view, const Tensor& out, const LseView& lse) const;
  /// Arguments over the host memory of the inputs, for the oracle.
  AttentionArgs host_args() const;
  /// Poisoned outputs of the case's layout.
  Outputs outputs() const;
  std::vector<RowRange> written() const;
};

/// Runs the case as given; then cut into calls that carry the state, plain and `invariant`: the last must be
/// bitwise equal to the uncut invariant call.
Report run_attention(const AttentionInputs& inputs, std::span<const ExpectedRow> expected,
                     const Backend& backend);

/// One call over the whole case, nothing checked; for tests with their own expectations.
Outputs attend_once(const AttentionInputs& inputs, const Backend& backend, bool invariant, Report& report);

/// The oracle's answer for these heads.
std::vector<ExpectedRow> expect(const AttentionInputs& inputs, std::span<const int64_t> heads);

}  // namespace mlaprefill::verify
