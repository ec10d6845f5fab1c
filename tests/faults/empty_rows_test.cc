// Rows without queries or without keys: out = 0 and LSE = -inf, or nothing written; never what was there
// before.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/backend_test.h"

namespace mlaprefill {
namespace {

using verify::AttentionCase;

class EmptyRows : public BackendTest {};

TEST_P(EmptyRows, KeysRunOutForSomeRequestsOnly) {
  AttentionCase one{.name = "exhausted", .requests = {{3, 7}, {5, 0}, {2, 4}}};
  expect_agrees(one, backend());
  verify::Report report;
  const verify::AttentionInputs inputs(one);
  const verify::Outputs got = verify::attend_once(inputs, backend(), false, report);
  ASSERT_RAN(report);
  for (int64_t row = 3; row < 8; ++row) {
    for (int64_t head = 0; head < one.heads; ++head) {
      EXPECT_EQ(got.lse.get(head, row), -std::numeric_limits<float>::infinity());
      for (int64_t d = 0; d < one.v_dim; ++d) EXPECT_EQ(got.out.get(row, head, d), 0.0f);
    }
  }
}

TEST_P(EmptyRows, ContextChunksThatEndBeforeTheLongestRequest) {
  verify::LayerCase one{
      .name = "chunks", .dims = layer_dims(), .requests = {{7, 600}, {65, 0}, {1, 100}, {32, 1}}};
  one.variants = {{PlanMode::kEvenSplit, 192, false, LayerPath::kComposed},
                  {PlanMode::kBridge, 192, false, LayerPath::kComposed},
                  {PlanMode::kBridge, 65536, false, LayerPath::kFused}};
  expect_agrees(verify::LayerInputs(one), backend());
}

TEST_P(EmptyRows, RequestsWithoutContextEqualABatchWithoutAny) {
  const MlaDims dims = layer_dims();
  for (const int32_t block_size : {16, 64}) {
    verify::LayerCase mixed{.name = "mixed", .dims = dims, .requests = {{4, 0}, {1, 0}, {33, 130}}};
    mixed.block_size = block_size;
    const verify::LayerInputs inputs(mixed);
    mixed.requests = {{4, 0}, {1, 0}};
    verify::LayerInputs alone(mixed);
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t d = 0; d < dims.qk_head_dim(); ++d) {
          alone.q.set(inputs.q.get(row, head, d), row, head, d);
        }
      }
      for (int64_t d = 0; d < dims.kv_lora_rank; ++d)
        alone.kv_latent.set(inputs.kv_latent.get(row, d), row, d);
      for (int64_t d = 0; d < dims.qk_rope_head_dim; ++d) alone.k_rope.set(inputs.k_rope.get(row, d), row, d);
    }
    alone.kv_b_proj = inputs.kv_b_proj;
    verify::Report report;
    const verify::LayerVariant variant{.invariant = true};
    const verify::Outputs with = verify::run_layer_once(inputs, variant, backend(), report);
    const verify::Outputs without = verify::run_layer_once(alone, variant, backend(), report);
    ASSERT_RAN(report);
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t head = 0; head < 2; ++head) {
        EXPECT_EQ(with.lse.get(head, row), without.lse.get(head, row));
        for (int64_t d = 0; d < dims.v_head_dim; ++d)
          EXPECT_EQ(with.out.get(row, head, d), without.out.get(row, head, d));
      }
    }
  }
}

TEST_P(EmptyRows, EveryHeadSizeTakesTheSameZeroLengths) {
  struct Dims {
    int64_t nope, rope, v_dim;
  };
  for (const auto& [nope, rope, v_dim] : {Dims{192, 64, 256}, {128, 64, 128}, {64, 32, 64}}) {
    // The reported lengths, an eighth of them.
    AttentionCase one{.name = "zero lengths",
                      .requests = {{0, 317}, {151, 218}, {105, 105}, {0, 384}},
                      .nope = nope,
                      .rope = rope,
                      .v_dim = v_dim};
    expect_agrees(one, backend());
  }
}

TEST_P(EmptyRows, ABatchOfZeroSucceedsWithNullData) {
  AttentionArgs args;
  args.q = ConstTensor(nullptr, DType::kBF16, {0, 4, 192});
  args.k = ConstTensor(nullptr, DType::kBF16, {0, 4, 192});
  args.v = ConstTensor(nullptr, DType::kBF16, {0, 4, 128});
  args.out = Tensor(nullptr, DType::kBF16, {0, 4, 128});
  args.softmax_scale = 1.0;
  EXPECT_EQ(backend().attention(args, {}).message(), "");
}

TEST_P(EmptyRows, RandomRaggedBatchesWithOneZeroInTen) {
  verify::Random random(GetParam());
  const auto length = [&random] { return random.below(10) == 0 ? 0 : 1 + random.below(100); };
  for (int draw = 0; draw < 64; ++draw) {
    AttentionCase one{.name = "draw " + std::to_string(draw), .heads = 1, .kv_heads = 1};
    for (int64_t r = 1 + random.below(9); r > 0; --r) one.requests.push_back({length(), length()});
    one.causal = draw % 2 == 0;
    expect_agrees(one, backend());
  }
}

TEST_P(EmptyRows, AnIdleBatchNeverReadsTheBlockTable) {
  verify::LayerCase one{.name = "idle", .dims = layer_dims()};
  one.requests.assign(16, {1, 0});
  expect_agrees(verify::LayerInputs(one), backend());
}

MLAPREFILL_FOR_EVERY_BACKEND(EmptyRows);

}  // namespace
}  // namespace mlaprefill
