// The answer of a call in fp64, beside what a plain evaluation in the working precision makes of it. Written
// apart from every backend, the reference included, so that they can all be judged by it. Host memory only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "mlaprefill/backend.h"

namespace mlaprefill::verify {

/// A query row of the call's tensors and one of its heads.
struct RowHead {
  int64_t row = 0;
  int64_t head = 0;
};

/// `naive` accumulates in float32, one term after the other, and rounds operands, expanded keys and values,
/// probabilities and the output to the working dtype (that of q; the output's for the output).
struct ExpectedRow {
  RowHead at;
  std::vector<double> out;        ///< [v_head_dim]
  double lse = 0.0;               ///< natural; -inf without a visible key
  std::vector<double> naive_out;  ///< [v_head_dim]
  double naive_lse = 0.0;
};

/// Every row of every span, for these heads. Spans must not resume a state.
std::vector<ExpectedRow> expect_attention(const AttentionArgs& args, std::span<const int64_t> heads);

/// The given rows of a layer run, in any order. Rows that belong to no request are not allowed.
/// Costs one expansion of the request's keys for each (request, head) named, and a few megabytes.
std::vector<ExpectedRow> expect_layer(const Plan& plan, const ConstTensor& kv_b_proj,
                                      const LayerTensors& tensors, std::span<const RowHead> rows);

/// All query rows of the plan's requests times these heads, for expect_layer.
std::vector<RowHead> all_rows(const Plan& plan, std::span<const int64_t> heads);

/// 0 .. count - 1.
std::vector<int64_t> all_heads(int64_t count);

}  // namespace mlaprefill::verify
