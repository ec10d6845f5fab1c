// Strides, padding, shared keys, page sizes and head counts: the layout of the inputs never changes the
// answer.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/tensor_access.h"
#include "support/backend_test.h"
#include "support/conversation.h"

namespace mlaprefill {
namespace {

using verify::AttentionCase;
using verify::AttentionInputs;
using verify::HostTensor;
using verify::Outputs;

class Layout : public BackendTest {};

void copy_values(const HostTensor& from, HostTensor& to, int64_t column) {
  const ConstTensor view = from.view();
  for (int64_t row = 0; row < view.shape[0]; ++row) {
    for (int64_t head = 0; head < view.shape[1]; ++head) {
      for (int64_t d = 0; d < view.shape[2]; ++d) to.set(from.get(row, head, d), row, head, column + d);
    }
  }
}

TEST_P(Layout, SlicesOfWiderBuffersGiveTheBitsOfContiguousTensors) {
  struct Dims {
    int64_t nope, rope, v_dim;
  };
  for (const auto& [nope, rope, v_dim] : {Dims{128, 64, 128}, {192, 64, 256}, {64, 32, 64}}) {
    AttentionCase one{.name = "slices",
                      .requests = {{5, 70}, {64, 64}},
                      .heads = 3,
                      .kv_heads = 3,
                      .nope = nope,
                      .rope = rope,
                      .v_dim = v_dim};
    const AttentionInputs contiguous(one);
    one.sliced = true;
    AttentionInputs sliced(one);
    copy_values(contiguous.q, sliced.q, 0);
    copy_values(contiguous.kv, sliced.kv, 0);
    copy_values(contiguous.v, sliced.kv, nope);
    for (int64_t row = 0; row < 134; ++row) {
      for (int64_t d = 0; d < rope; ++d) sliced.k_rope.set(contiguous.k_rope.get(row, d), row, d);
    }
    verify::Report report;
    const Outputs first = verify::attend_once(contiguous, backend(), false, report);
    const Outputs second = verify::attend_once(sliced, backend(), false, report);
    ASSERT_RAN(report);
    for (int64_t row = 0; row < 69; ++row) {
      for (int64_t head = 0; head < 3; ++head) {
        ASSERT_EQ(first.lse.get(head, row), second.lse.get(head, row));
        for (int64_t d = 0; d < v_dim; ++d)
          ASSERT_EQ(first.out.get(row, head, d), second.out.get(row, head, d));
      }
    }
  }
}

TEST_P(Layout, OneKeyHeadBroadcastByStrideZeroIsThatHeadCopied) {
  if (!reads_host_memory()) GTEST_SKIP() << "needs host memory";
  AttentionCase one{.name = "broadcast",
                    .requests = {{5, 70}},
                    .heads = 4,
                    .kv_heads = 4,
                    .nope = 64,
                    .rope = 0,
                    .v_dim = 64};
  AttentionInputs inputs(one);
  for (int64_t row = 0; row < 70; ++row) {
    for (int64_t head = 1; head < 4; ++head) {
      for (int64_t d = 0; d < 64; ++d) {
        inputs.kv.set(inputs.kv.get(row, 0, d), row, head, d);
        inputs.v.set(inputs.v.get(row, 0, d), row, head, d);
      }
    }
  }
  verify::Report report;
  const Outputs copied = verify::attend_once(inputs, backend(), false, report);
  ASSERT_RAN(report);
  ConstTensor k = inputs.kv.view();
  ConstTensor v = inputs.v.view();
  k.stride[1] = v.stride[1] = 0;
  Outputs got = inputs.outputs();
  const AttentionArgs args =
      inputs.args(inputs.q.view(), k, {}, v, got.out.view(), got.lse_view(got.lse.view()));
  ASSERT_EQ(backend().attention(args, {}).message(), "");
  verify::check_same("broadcast", copied, got, report);
  EXPECT_EQ(report.problem(), "");
}

TEST_P(Layout, SharedRopeKeysEqualOnesCopiedToEveryHead) {
  const DType dtype = serves(DType::kF32) ? DType::kF32 : DType::kBF16;
  AttentionCase one{.name = "rope",
                    .requests = {{9, 70}},
                    .dtype = dtype,
                    .out_dtype = dtype,
                    .heads = 3,
                    .kv_heads = 3,
                    .nope = 128,
                    .rope = 64,
                    .v_dim = 128};
  const AttentionInputs shared(one);
  one.nope = 192;
  one.rope = 0;
  AttentionInputs copied(one);
  copy_values(shared.q, copied.q, 0);
  copy_values(shared.kv, copied.kv, 0);
  copy_values(shared.v, copied.v, 0);
  for (int64_t row = 0; row < 70; ++row) {
    for (int64_t head = 0; head < 3; ++head) {
      for (int64_t d = 0; d < 64; ++d) copied.kv.set(shared.k_rope.get(row, d), row, head, 128 + d);
    }
  }
  const auto expected = verify::expect(shared, verify::all_heads(3));
  expect_passed(verify::run_attention(copied, expected, backend()), backend(), one.name);
}

TEST_P(Layout, EveryPageSizeGivesTheBitsOfOnePage) {
  const Conversation conversation(MlaDims{2, 64, 128, 64, 128, 0.1}, 301);
  for (const int32_t context : {1, 64, 127, 128, 129, 300}) {
    for (const LayerPath path : layer_paths()) {
      verify::Report report;
      const verify::LayerVariant variant{.path = path};
      const Outputs whole = verify::run_layer_once(
          conversation.inputs(context, context + 1, DType::kBF16, 512), variant, backend(), report);
      for (const int32_t page : {1, 16, 32, 64, 128, 256}) {
        const Outputs paged = verify::run_layer_once(
            conversation.inputs(context, context + 1, DType::kBF16, page), variant, backend(), report);
        verify::check_same("pages of " + std::to_string(page), whole, paged, report);
      }
      EXPECT_EQ(report.problem(), "") << context;
    }
  }
}

TEST_P(Layout, SingleQueriesOverLongUnevenKeys) {
  AttentionCase one{.name = "single queries", .heads = 4, .kv_heads = 4, .causal = false};
  int64_t left = 15535 / 4;
  for (int64_t request = 0; request < 12; ++request) {
    const int64_t keys = request == 11 ? left : left / (2 + request % 4);
    one.requests.push_back({1, keys});
    left -= keys;
  }
  expect_agrees(one, backend());
}

TEST_P(Layout, EightHeadsWithEveryDefault) {
  verify::LayerCase one{
      .name = "eight heads", .dims = {8, 512, 128, 64, 128, 0.1}, .requests = {{9, 20}, {3, 0}}};
  one.variants = {{}, {.path = LayerPath::kAuto}};
  expect_agrees(verify::LayerInputs(one), backend());
}

TEST_P(Layout, UnsupportedDimsAreRefusedByName) {
  SupportQuery query;
  query.dims = {16, 512, 120, 64, 128, 0.1};
  const auto reasons = backend().supports(query);
  ASSERT_FALSE(reasons.empty());
  EXPECT_EQ(reasons[0], "qk_nope_head_dim: must be a positive multiple of 16, got 120");
  query.dims = {16, 512, 192, 64, 256, 0.1};
  EXPECT_TRUE(backend().supports(query).empty());
}

MLAPREFILL_FOR_EVERY_BACKEND(Layout);

}  // namespace
}  // namespace mlaprefill
