#include <fmt/format.h>

#include <memory>
#include <utility>

#include "verify/attention_case.h"
#include "verify/cases.h"

namespace mlaprefill::verify {
namespace {

using Requests = std::vector<AttentionCase::Lengths>;

// Empty rows and keys, single tokens, lengths around every tile, more queries than keys.
const Requests kMixed{{5, 7}, {0, 9}, {3, 0}, {1, 1}, {64, 64}, {17, 130}, {70, 33}, {1, 257}, {0, 0}};

Case make_case(const AttentionCase& attention_case) {
  return {attention_case.name, [attention_case] {
            auto inputs = std::make_shared<const AttentionInputs>(attention_case);
            auto expected = std::make_shared<const std::vector<ExpectedRow>>(
                expect(*inputs, all_heads(attention_case.heads)));
            return [inputs, expected](const Backend& backend) {
              return run_attention(*inputs, *expected, backend);
            };
          }};
}

void add_dtypes(std::vector<Case>& cases) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const bool causal : {true, false}) {
      AttentionCase one;
      one.requests = kMixed;
      one.dtype = one.out_dtype = dtype;
      one.causal = causal;
      one.name = fmt::format("attention/192-128/{}/{}", to_string(dtype), causal ? "causal" : "full");
      cases.push_back(make_case(one));
      if (dtype == DType::kF32) continue;
      one.out_dtype = DType::kF32;
      one.name += "/out-f32";
      cases.push_back(make_case(one));
    }
  }
}

void add_dims(std::vector<Case>& cases) {
  struct Dims {
    int64_t nope, rope, v_dim;
  };
  for (const auto& [nope, rope, v_dim] : {Dims{192, 64, 256},
                                          {64, 32, 64},
                                          {96, 32, 96},
                                          {16, 16, 16},
                                          {48, 16, 80},
                                          {176, 48, 112},
                                          {256, 128, 256},
                                          {128, 0, 128},
                                          {64, 0, 64},
                                          {192, 0, 128},
                                          {256, 0, 256},
                                          {80, 0, 48}}) {
    AttentionCase one;
    one.requests = {{9, 40}, {0, 3}, {65, 65}, {4, 0}};
    one.nope = nope;
    one.rope = rope;
    one.v_dim = v_dim;
    one.name = fmt::format("attention/{}-{}-{}/bf16/dims", nope, rope, v_dim);
    cases.push_back(make_case(one));
  }
}

void add_layouts(std::vector<Case>& cases) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    AttentionCase one;
    one.requests = kMixed;
    one.dtype = one.out_dtype = dtype;
    one.heads = one.kv_heads = 5;
    one.nope = 64;
    one.rope = 32;
    one.v_dim = 64;
    one.sliced = true;
    one.padding_rows = 3;
    one.lse_layout = LseLayout::kTokenMajor;
    one.lse_base = LseBase::kLog2;
    one.name = fmt::format("attention/96-64/{}/sliced/token-major-log2", to_string(dtype));
    cases.push_back(make_case(one));
    one.lse_layout = LseLayout::kPaddedHeadMajor;
    one.lse_base = LseBase::kNatural;
    one.causal = false;
    one.name = fmt::format("attention/96-64/{}/sliced/padded-head-major", to_string(dtype));
    cases.push_back(make_case(one));
  }
}

void add_heads(std::vector<Case>& cases) {
  for (const auto& [heads, kv_heads] :
       {std::pair<int64_t, int64_t>{1, 1}, {10, 10}, {16, 2}, {20, 5}, {40, 1}}) {
    AttentionCase one;
    one.requests = {{3, 20}, {18, 18}};
    one.heads = heads;
    one.kv_heads = kv_heads;
    one.nope = one.v_dim = 64;
    one.rope = 0;
    one.name = fmt::format("attention/64-64/bf16/heads-{}-over-{}", heads, kv_heads);
    cases.push_back(make_case(one));
  }
}

void add_scales(std::vector<Case>& cases) {
  for (const double scale : {1.8739 / 13.856406460551018, 0.05, 0.0, -0.1, 1.0}) {
    AttentionCase one;
    one.requests = {{6, 90}, {70, 70}};
    one.dtype = one.out_dtype = DType::kF32;
    one.softmax_scale = scale;
    one.name = fmt::format("attention/192-128/f32/scale-{:.4f}", scale);
    cases.push_back(make_case(one));
  }
  AttentionCase peaked;
  peaked.requests = {{6, 200}, {70, 70}};
  peaked.logit_spread = 8.0f;
  peaked.name = "attention/192-128/bf16/peaked";
  cases.push_back(make_case(peaked));
}

}  // namespace

std::vector<Case> attention_cases() {
  std::vector<Case> cases;
  add_dtypes(cases);
  add_dims(cases);
  add_layouts(cases);
  add_heads(cases);
  add_scales(cases);
  return cases;
}

}  // namespace mlaprefill::verify
