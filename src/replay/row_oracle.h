// One (query, head) row of an MLA layer in float64, and what a plain bf16 evaluation of it would get wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "mlaprefill/dims.h"

namespace mlaprefill {

/// What a row's result depends on. All values are bf16.
struct RowProblem {
  const MlaDims* dims = nullptr;
  const uint16_t* query = nullptr;                 ///< [nope + rope] of this head
  const uint16_t* weight = nullptr;                ///< [nope + v, kv_lora_rank] of this head
  int64_t num_keys = 0;                            ///< the visible keys are 0 .. num_keys - 1, at least one
  std::function<const uint16_t*(int64_t)> latent;  ///< [kv_lora_rank + rope] of a key
};

struct RowValue {
  std::vector<double> out;     ///< [v]
  double lse = 0.0;            ///< natural logarithm of the sum of exp of the scaled logits
  std::vector<double> logits;  ///< [num_keys], scaled
};

/// The row in float64. The up-projection is folded into the query and the output, which is the same function
/// and needs no expanded keys.
RowValue exact_row(const RowProblem& problem);

/// Largest errors a result may have and still be called right.
struct RowTolerance {
  double out = 0.0;
  double lse = 0.0;
};

/// 2 x the error of the naive evaluation (keys, values, probabilities and output rounded to bf16, sums in
/// float32) plus one bf16 rounding step of the largest output; for the LSE 2 x the naive evaluation's largest
/// logit error plus a float32 rounding step.
RowTolerance row_tolerance(const RowProblem& problem, const RowValue& exact);

}  // namespace mlaprefill
