// Partial results over parts of the keys, merged, equal attention over all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor_access.h"
#include "support/backend_test.h"

namespace mlaprefill {
namespace {

using verify::AttentionCase;
using verify::AttentionInputs;
using verify::HostTensor;
using verify::Outputs;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Merging : public BackendTest {
 protected:
  // Attention of every span over its keys [begin, end) alone, float32.
  Outputs partial(const AttentionInputs& inputs, int64_t begin, int64_t end, LseBase base) {
    AttentionInputs part = inputs;
    part.config.out_dtype = DType::kF32;
    part.config.lse_base = base;
    for (AttentionSpan& span : part.spans) {
      const int64_t first = std::min(begin, span.k_len);
      span.k_row += first;
      span.k_len = std::min(end, span.k_len) - first;
      if (span.causal_offset != AttentionSpan::kNotCausal) span.causal_offset -= first;
    }
    verify::Report report;
    Outputs outputs = verify::attend_once(part, backend(), false, report);
    EXPECT_EQ(report.problem(), "");
    return outputs;
  }

  // Merges into fresh outputs of the case's dtype.
  Outputs merge(const std::vector<Outputs>& partials, const Outputs& like) {
    verify::Placement placement(backend());
    std::vector<PartialAttention> views;
    for (const Outputs& one : partials) {
      views.push_back({placement.put(one.out), one.lse_view(placement.put(one.lse))});
    }
    const Tensor out = placement.put(like.out);
    const Tensor lse = placement.put(like.lse);
    EXPECT_EQ(backend().merge({.partials = views, .out = out, .lse = like.lse_view(lse)}, {}).message(), "");
    return {placement.get(out, like.out), placement.get(lse, like.lse), like.base};
  }

  void expect_merged(const AttentionInputs& inputs, const std::vector<Outputs>& partials) {
    const auto expected = verify::expect(inputs, verify::all_heads(inputs.config.heads));
    const Outputs got = merge(partials, inputs.outputs());
    HostTensor lse = got.lse;
    EXPECT_EQ(verify::compare(expected, got.out.view(), got.lse_view(lse.view())).failure, "");
  }
};

TEST_P(Merging, SuffixAndContextInAnyOrderOfRows) {
  // Contexts of 64, 0, 32, 0 tokens: rows without context must take the suffix alone.
  for (const bool sorted : {false, true}) {
    AttentionCase one{.name = "context and suffix", .requests = {{5, 69}, {3, 3}, {2, 34}, {4, 4}}};
    if (sorted) one.requests = {{5, 69}, {2, 34}, {3, 3}, {4, 4}};
    const AttentionInputs inputs(one);
    AttentionInputs context = inputs, suffix = inputs;
    context.config.out_dtype = suffix.config.out_dtype = DType::kF32;
    for (size_t i = 0; i < one.requests.size(); ++i) {
      const int64_t cached = one.requests[i].keys - one.requests[i].queries;
      context.spans[i].k_len = cached;
      context.spans[i].causal_offset = AttentionSpan::kNotCausal;
      suffix.spans[i].k_row += cached;
      suffix.spans[i].k_len -= cached;
      suffix.spans[i].causal_offset = 0;
    }
    verify::Report report;
    const Outputs first = verify::attend_once(context, backend(), false, report);
    const Outputs second = verify::attend_once(suffix, backend(), false, report);
    ASSERT_RAN(report);
    expect_merged(inputs, {first, second});
    expect_merged(inputs, {second, first});
    const Outputs merged = merge({first, second}, suffix.outputs());
    const AttentionSpan& without_context = inputs.spans[sorted ? 2 : 1];
    for (int64_t row = without_context.q_row; row < without_context.q_row + without_context.q_len; ++row) {
      for (int64_t d = 0; d < one.v_dim; ++d) {
        EXPECT_EQ(merged.out.get(row, 1, d), second.out.get(row, 1, d));
      }
      EXPECT_EQ(merged.lse.get(1, row), second.lse.get(1, row));
    }
  }
}

TEST_P(Merging, AFoldOfEightChunksOfWhichSomeAreEmpty) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (!serves(dtype)) continue;
    AttentionCase one{
        .name = "fold", .requests = {{9, 40}, {3, 0}, {65, 65}}, .dtype = dtype, .out_dtype = dtype};
    const AttentionInputs inputs(one);
    std::vector<Outputs> partials;
    for (int64_t i = 0; i < 8; ++i)
      partials.push_back(partial(inputs, i * 16, (i + 1) * 16, LseBase::kNatural));
    expect_merged(inputs, partials);
    std::swap(partials[0], partials[7]);
    std::swap(partials[2], partials[5]);
    expect_merged(inputs, partials);
  }
}

TEST_P(Merging, EmptyStatesStayEmpty) {
  AttentionCase one{.name = "all empty", .requests = {{4, 0}, {2, 0}}};
  const AttentionInputs inputs(one);
  const Outputs empty = partial(inputs, 0, 16, LseBase::kNatural);
  const Outputs merged = merge(std::vector<Outputs>(8, empty), inputs.outputs());
  const Outputs none = merge({}, inputs.outputs());
  for (const Outputs* got : {&merged, &none}) {
    for (int64_t row = 0; row < 6; ++row) {
      EXPECT_EQ(got->lse.get(0, row), -kInfinity);
      EXPECT_EQ(got->out.get(row, 1, 7), 0.0f);
    }
  }
}

TEST_P(Merging, AForeignPlusInfinityIsEmpty) {
  Outputs foreign{HostTensor(DType::kF32, {1, 1, 16}), HostTensor(DType::kF32, {1, 1}), LseBase::kNatural};
  Outputs own = foreign;
  foreign.lse.set(kInfinity, 0, 0);
  own.lse.set(1.5f, 0, 0);
  for (int64_t d = 0; d < 16; ++d) own.out.set(static_cast<float>(d), 0, 0, d);
  const Outputs like{HostTensor(DType::kF32, {1, 1, 16}), HostTensor(DType::kF32, {1, 1}), LseBase::kNatural};
  for (const Outputs& merged : {merge({foreign, own}, like), merge({own, foreign}, like)}) {
    EXPECT_EQ(merged.lse.get(0, 0), 1.5f);
    for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(merged.out.get(0, 0, d), static_cast<float>(d));
  }
}

TEST_P(Merging, VeryNegativeSumsAreNotTakenForEmpty) {
  const auto state = [](float lse, float value) {
    Outputs one{HostTensor(DType::kF32, {1, 1, 16}), HostTensor(DType::kF32, {1, 1}), LseBase::kNatural};
    one.lse.set(lse, 0, 0);
    for (int64_t d = 0; d < 16; ++d) one.out.set(value, 0, 0, d);
    return one;
  };
  const Outputs like = state(0.0f, 0.0f);
  const Outputs far = merge({state(-6.0e4f, 2.0f), state(-kInfinity, NAN), state(-6.1e4f, 3.0f)}, like);
  EXPECT_EQ(far.lse.get(0, 0), -6.0e4f);
  EXPECT_EQ(far.out.get(0, 0, 3), 2.0f);
  const Outputs farther = merge({state(-3e38f, 2.0f), state(-3e38f, 4.0f)}, like);
  EXPECT_EQ(farther.lse.get(0, 0), -3e38f);
  EXPECT_EQ(farther.out.get(0, 0, 3), 3.0f);
}

TEST_P(Merging, NaNOfAContributingPartialIsKept) {
  Outputs broken{HostTensor(DType::kF32, {1, 1, 16}), HostTensor(DType::kF32, {1, 1}), LseBase::kNatural};
  Outputs sound = broken;
  sound.lse.set(0.0f, 0, 0);
  broken.lse.set(NAN, 0, 0);
  for (int64_t d = 0; d < 16; ++d) {
    sound.out.set(1.0f, 0, 0, d);
    broken.out.set(1.0f, 0, 0, d);
  }
  const Outputs like{HostTensor(DType::kF32, {1, 1, 16}), HostTensor(DType::kF32, {1, 1}), LseBase::kNatural};
  const Outputs lost_lse = merge({sound, broken}, like);
  EXPECT_TRUE(std::isnan(lost_lse.lse.get(0, 0)));
  EXPECT_TRUE(std::isnan(lost_lse.out.get(0, 0, 5)));
  broken.lse.set(-2.0f, 0, 0);
  broken.out.set(NAN, 0, 0, 5);
  const Outputs lost_out = merge({sound, broken}, like);
  EXPECT_TRUE(std::isnan(lost_out.out.get(0, 0, 5)));
  EXPECT_FALSE(std::isnan(lost_out.out.get(0, 0, 4)));
}

TEST_P(Merging, RanksOfRoundRobinKeysWithTwoBases) {
  AttentionCase one{.name = "ranks",
                    .requests = {{3, 1600}},
                    .heads = 8,
                    .kv_heads = 8,
                    .nope = 192,
                    .rope = 0,
                    .v_dim = 128,
                    .causal = false};
  const AttentionInputs inputs(one);
  std::vector<Outputs> partials;
  for (int64_t rank = 0; rank < 4; ++rank) {
    AttentionInputs local = inputs;
    local.config.out_dtype = DType::kF32;
    local.config.lse_base = rank < 2 ? LseBase::kNatural : LseBase::kLog2;
    local.spans[0].k_len = 400;
    for (int64_t key = 0; key < 400; ++key) {
      for (int64_t head = 0; head < 8; ++head) {
        for (int64_t d = 0; d < 192; ++d) {
          local.kv.set(inputs.kv.get(4 * key + rank, head, d), key, head, d);
        }
        for (int64_t d = 0; d < 128; ++d) {
          local.v.set(inputs.v.get(4 * key + rank, head, d), key, head, d);
        }
      }
    }
    verify::Report report;
    partials.push_back(verify::attend_once(local, backend(), false, report));
    ASSERT_RAN(report);
  }
  expect_merged(inputs, partials);
}

TEST_P(Merging, TheLseCarriesWhateverScaleWasGiven) {
  if (!serves(DType::kF32)) GTEST_SKIP() << "needs float32";
  for (const double scale : {1.874 / std::sqrt(192.0), 0.05, 0.0, -0.07}) {
    AttentionCase one{.name = "scaled chunks",
                      .requests = {{6, 512}},
                      .dtype = DType::kF32,
                      .out_dtype = DType::kF32,
                      .softmax_scale = scale};
    const AttentionInputs inputs(one);
    expect_merged(inputs,
                  {partial(inputs, 0, 256, LseBase::kNatural), partial(inputs, 256, 512, LseBase::kLog2)});
  }
}

MLAPREFILL_FOR_EVERY_BACKEND(Merging);

}  // namespace
}  // namespace mlaprefill
