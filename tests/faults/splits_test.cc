// The same sequence, however it is split into steps, passes and chunks, gives the same answer.
#include <gtest/gtest.h>

#include <vector>

#include "support/backend_test.h"
#include "support/conversation.h"

namespace mlaprefill {
namespace {

using verify::LayerVariant;

class Splits : public BackendTest {
 protected:
  // Holds the last rows of a run to the oracle of the same run.
  void expect_last_rows(const verify::LayerInputs& inputs, const std::vector<verify::ExpectedRow>& expected,
                        const LayerVariant& variant) {
    verify::Report report;
    const verify::Outputs got = verify::run_layer_once(inputs, variant, backend(), report);
    ASSERT_RAN(report);
    verify::HostTensor lse = got.lse;
    EXPECT_EQ(verify::compare(expected, got.out.view(), got.lse_view(lse.view())).failure, "");
  }
};

TEST_P(Splits, OfAPromptIntoTwoStepsKeepTheLastToken) {
  const Conversation conversation(layer_dims(), 1100);
  const auto whole = expect_last(conversation.inputs(0, 1100, DType::kBF16, 16), 1);
  ASSERT_EQ(whole.size(), 2u);
  for (const int32_t context : {0, 550, 1024, 1099, 1}) {
    const verify::LayerInputs inputs = conversation.inputs(context, 1100, DType::kBF16, 16);
    std::vector<verify::ExpectedRow> expected = whole;
    for (verify::ExpectedRow& row : expected) row.at.row = 1099 - context;
    for (const LayerPath path : layer_paths()) {
      expect_last_rows(inputs, expected, {.workspace_tokens = 300, .path = path});
    }
  }
}

TEST_P(Splits, AWarmCacheAnswersLikeAColdOne) {
  const int32_t tokens = 2112;
  const Conversation conversation(layer_dims(1), tokens);
  const auto cold = expect_last(conversation.inputs(0, tokens, DType::kBF16, 16), 64);
  for (const DType cache : {DType::kBF16, DType::kF8E4M3}) {
    const verify::LayerInputs inputs = conversation.inputs(tokens - 64, tokens, cache, 16);
    std::vector<verify::ExpectedRow> expected = cold;
    for (verify::ExpectedRow& row : expected) row.at.row -= tokens - 64;
    for (const int64_t chunk : {64, 1000, 4096}) {
      expect_last_rows(inputs, expected, {PlanMode::kBridge, chunk, false, LayerPath::kComposed});
      expect_last_rows(inputs, expected, {PlanMode::kVllm, chunk, false, LayerPath::kComposed});
    }
  }
}

TEST_P(Splits, RandomOnesAgree) {
  verify::Random random(22);
  const Conversation conversation(layer_dims(1), 200, DType::kF32);
  const auto whole = expect_last(conversation.inputs(0, 200, DType::kF32, 16), 8);
  for (int draw = 0; draw < 40; ++draw) {
    const auto context = static_cast<int32_t>(random.below(193));
    const auto block_size = static_cast<int32_t>(1 + random.below(40));
    const verify::LayerInputs inputs = conversation.inputs(context, 200, DType::kF8E4M3, block_size);
    std::vector<verify::ExpectedRow> expected = whole;
    for (verify::ExpectedRow& row : expected) row.at.row -= context;
    const PlanMode mode = std::vector{PlanMode::kBridge, PlanMode::kMinContinuation, PlanMode::kVllm,
                                      PlanMode::kEvenSplit}[static_cast<size_t>(draw % 4)];
    expect_last_rows(inputs, expected, {mode, 1 + random.below(230), false, LayerPath::kComposed});
  }
}

TEST_P(Splits, ContextsOfManyWidthsWithEmptyTailsInAChunk) {
  verify::LayerCase one{.name = "wide batch", .dims = layer_dims(4)};
  verify::Random random(17);
  const std::vector<int32_t> contexts{0, 1, 255, 256, 257, 600};
  for (int request = 0; request < 64; ++request) {
    one.requests.push_back(
        {static_cast<int32_t>(1 + random.below(3)), contexts[static_cast<size_t>(random.below(6))]});
  }
  one.variants = {{PlanMode::kBridge, 256, false, LayerPath::kComposed},
                  {PlanMode::kEvenSplit, 16384, false, LayerPath::kComposed},
                  {PlanMode::kBridge, 65536, false, LayerPath::kFused}};
  expect_agrees(verify::LayerInputs(one), backend());
}

TEST_P(Splits, ABatchFarBeyondTheWorkspaceStaysInsideIt) {
  // 84,252 context tokens through a workspace of 15,360.
  verify::LayerCase one{.name = "beyond the workspace", .dims = {1, 16, 16, 16, 16, 0.2}};
  int32_t left = 84252;
  for (int32_t request = 0; request < 40; ++request) {
    const int32_t context = request == 39 ? left : 2060 + request * 2;
    one.requests.push_back({1, context});
    left -= context;
  }
  one.variants = {{PlanMode::kBridge, 15360, false, LayerPath::kComposed},
                  {PlanMode::kVllm, 15360, false, LayerPath::kComposed}};
  expect_agrees(verify::LayerInputs(one), backend());
}

MLAPREFILL_FOR_EVERY_BACKEND(Splits);

}  // namespace
}  // namespace mlaprefill
