// Bitwise independence of the batch, the order of requests and the workspace in `invariant` mode, and of the
// run in every mode.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/backend_test.h"
#include "support/conversation.h"

namespace mlaprefill {
namespace {

using verify::LayerCase;
using verify::LayerInputs;
using verify::LayerVariant;
using verify::Outputs;

class Invariance : public BackendTest {
 protected:
  // The rows of request r hold the same bits in both outputs.
  static void expect_same_request(const LayerInputs& a, size_t ra, const Outputs& got_a, const LayerInputs& b,
                                  size_t rb, const Outputs& got_b) {
    const MlaDims& dims = a.config.dims;
    for (int64_t i = 0; i < a.query_lens[ra]; ++i) {
      const int64_t row_a = a.query_start_loc[ra] + i;
      const int64_t row_b = b.query_start_loc[rb] + i;
      for (int64_t head = 0; head < dims.num_heads; ++head) {
        ASSERT_EQ(got_a.lse.get(head, row_a), got_b.lse.get(head, row_b)) << i;
        for (int64_t d = 0; d < dims.v_head_dim; ++d) {
          ASSERT_EQ(got_a.out.get(row_a, head, d), got_b.out.get(row_b, head, d)) << i;
        }
      }
    }
  }

  Outputs run(const LayerInputs& inputs, const LayerVariant& variant) {
    verify::Report report;
    Outputs got = verify::run_layer_once(inputs, variant, backend(), report);
    EXPECT_EQ(report.problem(), "");
    return got;
  }
};

TEST_P(Invariance, AloneOrAmongOthersWithASharedWorkspace) {
  const Conversation first(layer_dims(), 1516);
  const Conversation second(layer_dims(), 700);
  const LayerInputs alone = first.inputs(1500, 1516, DType::kBF16, 16);
  for (const LayerPath path : layer_paths()) {
    const Outputs expected = run(alone, {PlanMode::kBridge, 2048, true, path});
    for (const size_t place : {size_t{0}, size_t{3}, size_t{7}}) {
      std::vector<const Conversation*> conversations(8, &second);
      std::vector<LayerCase::Request> requests(8, {20, 333});
      requests[1] = {0, 100};
      requests[2] = {5, 0};
      conversations[place] = &first;
      requests[place] = {16, 1500};
      const LayerInputs among = Conversation::batch(conversations, requests, DType::kBF16, 16);
      for (const int64_t workspace : {64, 1000, 2048}) {
        const Outputs got = run(among, {PlanMode::kBridge, workspace, true, path});
        expect_same_request(alone, 0, expected, among, place, got);
      }
    }
  }
}

TEST_P(Invariance, OneAnswerForAPrefixInEveryBatch) {
  for (const int32_t prefix : {1, 511, 2048, 4097}) {
    const Conversation conversation(layer_dims(1), prefix + 2);
    const LayerInputs alone = conversation.inputs(prefix, prefix + 2, DType::kBF16, 64);
    for (const LayerPath path : layer_paths()) {
      const Outputs expected = run(alone, {PlanMode::kBridge, 4096, true, path});
      for (const size_t batch : {size_t{2}, size_t{11}}) {
        const std::vector<const Conversation*> conversations(batch, &conversation);
        const std::vector<LayerCase::Request> requests(batch, {2, prefix});
        const LayerInputs many = Conversation::batch(conversations, requests, DType::kBF16, 64);
        const Outputs got = run(many, {PlanMode::kBridge, 4096, true, path});
        for (size_t r = 0; r < batch; ++r) expect_same_request(alone, 0, expected, many, r, got);
      }
    }
  }
}

TEST_P(Invariance, AnyOrderOfRequests) {
  const Conversation conversation(layer_dims(), 400);
  std::vector<LayerCase::Request> requests{{5, 0}, {0, 40}, {33, 130}, {1, 300}, {20, 7}, {66, 0}};
  const std::vector<const Conversation*> conversations(requests.size(), &conversation);
  for (const LayerPath path : layer_paths()) {
    std::sort(requests.begin(), requests.end(), [](auto& a, auto& b) { return a.queries < b.queries; });
    const LayerInputs sorted = Conversation::batch(conversations, requests, DType::kBF16, 16);
    const Outputs expected = run(sorted, {PlanMode::kBridge, 100, true, path});
    std::vector<size_t> order{0, 1, 2, 3, 4, 5};
    for (int shuffle = 0; shuffle < 5; ++shuffle) {
      std::rotate(order.begin(), order.begin() + 1, order.end());
      std::swap(order[1], order[4]);
      std::vector<LayerCase::Request> shuffled;
      for (const size_t r : order) shuffled.push_back(requests[r]);
      const LayerInputs other = Conversation::batch(conversations, shuffled, DType::kBF16, 16);
      const Outputs got = run(other, {PlanMode::kBridge, 100, true, path});
      for (size_t r = 0; r < order.size(); ++r)
        expect_same_request(sorted, order[r], expected, other, r, got);
    }
  }
}

TEST_P(Invariance, EveryRunOfTheSameCallGivesTheSameBits) {
  verify::LayerCase config{
      .name = "runs", .dims = layer_dims(5), .requests = {{90, 300}, {0, 7}, {9, 0}, {1, 600}}};
  const LayerInputs inputs(config);
  for (const LayerVariant& variant : verify::default_variants()) {
    if (variant.path == LayerPath::kFused && !backend().has_fused_layer()) continue;
    const Outputs expected = run(inputs, variant);
    for (int repeat = 0; repeat < 3; ++repeat) {
      verify::Report report;
      verify::check_same("repeat", expected, run(inputs, variant), report);
      EXPECT_EQ(report.problem(), "");
    }
  }
}

MLAPREFILL_FOR_EVERY_BACKEND(Invariance);

}  // namespace
}  // namespace mlaprefill
