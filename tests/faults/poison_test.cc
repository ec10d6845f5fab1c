// What nobody may read is NaN, and nothing of it shows; what is visible and NaN does show.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>

#include "support/backend_test.h"

namespace mlaprefill {
namespace {

using verify::AttentionCase;
using verify::AttentionInputs;
using verify::LayerInputs;
using verify::Outputs;

class Poison : public BackendTest {
 protected:
  /// Rows that a NaN behind their mask has spoilt are computed again: right, but in an order of their own, so
  /// that bits depend on where the keys are cut (docs/hopper.md).
  bool repairs_rows() const { return backend().name() == "sm90"; }
};

TEST_P(Poison, PaddingRowsAreLeftAlone) {
  verify::LayerCase one{.name = "padding", .dims = layer_dims(), .requests = {{1, 20}}};
  one.padding_rows = 1024;
  one.variants = {{.path = LayerPath::kFused}, {}, {.path = LayerPath::kFused}};
  expect_agrees(LayerInputs(one), backend());
}

TEST_P(Poison, GapsBetweenRequestsAreHonoured) {
  // Starts 0, 4, 8 with lengths 3, 2, 4: a kernel that sums lengths would shift every row after the first
  // gap.
  verify::LayerCase one{.name = "gaps", .dims = layer_dims(), .requests = {{3, 20}, {2, 0}, {4, 5}}};
  one.padding_rows = 2;
  expect_agrees(LayerInputs(one), backend());
}

TEST_P(Poison, NaNAtALaterKeyDoesNotReachEarlierQueries) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    if (!serves(dtype)) continue;
    AttentionCase one{.name = "later key", .requests = {{130, 130}}, .dtype = dtype, .out_dtype = dtype};
    const AttentionInputs clean(one);
    for (const int64_t key : {1, 63, 64, 100, 129}) {
      AttentionInputs broken = clean;
      broken.kv.set(NAN, key, 0, 3);
      broken.v.set(NAN, key, 1, 4);
      const auto expected = verify::expect(broken, verify::all_heads(2));
      EXPECT_FALSE(std::isnan(expected[static_cast<size_t>(key - 1)].lse));
      EXPECT_TRUE(std::isnan(expected[static_cast<size_t>(key)].lse));
      if (!repairs_rows()) {
        expect_passed(verify::run_attention(broken, expected, backend()), backend(), std::to_string(key));
        continue;
      }
      verify::Report report;
      const Outputs got = verify::attend_once(broken, backend(), false, report);
      ASSERT_EQ(report.problem(), "");
      verify::HostTensor lse = got.lse;
      EXPECT_EQ(verify::compare(expected, got.out.view(), got.lse_view(lse.view())).failure, "") << key;
    }
  }
}

TEST_P(Poison, NaNInAQueryOrAVisibleKeyIsKept) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (!serves(dtype)) continue;
    AttentionCase one{.name = "kept", .requests = {{40, 130}, {5, 9}}, .dtype = dtype, .out_dtype = dtype};
    AttentionInputs inputs(one);
    inputs.q.set(NAN, 7, 0, 150);
    inputs.kv.set(NAN, 110, 1, 5);
    inputs.k_rope.set(NAN, 132, 9);
    inputs.v.set(NAN, 100, 0, 77);
    const auto expected = verify::expect(inputs, verify::all_heads(2));
    expect_passed(verify::run_attention(inputs, expected, backend()), backend(), inputs.config.name);
  }
}

TEST_P(Poison, AHugeFiniteValueBehindTheMaskDoesNothing) {
  AttentionCase one{.name = "huge", .requests = {{70, 70}}, .dtype = DType::kF32, .out_dtype = DType::kF32};
  AttentionInputs inputs(one);
  inputs.kv.set(1e30f, 69, 0, 3);
  inputs.v.set(1e30f, 69, 1, 4);
  verify::Report report;
  const Outputs got = verify::attend_once(inputs, backend(), false, report);
  ASSERT_RAN(report);
  for (int64_t row = 0; row < 69; ++row) EXPECT_LT(std::fabs(got.out.get(row, 1, 4)), 5.0f);
}

// Runs plans of several sizes in one workspace, one after the other.
TEST_P(Poison, AWorkspaceSharedByPlansOfSeveralSizes) {
  if (!reads_host_memory()) GTEST_SKIP() << "needs host memory";
  verify::LayerCase config{.name = "small", .dims = layer_dims(), .requests = {{3, 20}}};
  const LayerInputs small(config);
  config.name = "large";
  config.requests = {{60, 500}, {1, 30}};
  const LayerInputs large(config);
  std::vector<std::max_align_t> workspace(1 << 16);
  const auto run = [&](const LayerInputs& inputs) {
    const auto plan = inputs.plan({.workspace_tokens = 128}, backend().device_properties());
    const auto layer = MlaLayer::create(backend(), config.dims, inputs.kv_b_proj.view());
    EXPECT_TRUE(plan.ok() && layer.ok());
    Outputs got = inputs.outputs();
    LayerTensors tensors = inputs.host_tensors();
    tensors.out = got.out.view();
    tensors.lse = got.lse_view(got.lse.view());
    const Workspace lent{workspace.data(), static_cast<int64_t>(workspace.size() * sizeof(workspace[0]))};
    EXPECT_EQ(layer.value().run(plan.value(), tensors, lent, LayerPath::kComposed).message(), "");
    return got;
  };
  const Outputs first_small = run(small);
  const Outputs first_large = run(large);
  verify::Report report;
  verify::check_same("small again", first_small, run(small), report);
  verify::check_same("large again", first_large, run(large), report);
  EXPECT_EQ(report.problem(), "");
}

TEST_P(Poison, ThreadsWithTheirOwnWorkspacesDoNotDisturbEachOther) {
  verify::LayerCase config{.name = "threads", .dims = layer_dims(), .requests = {{30, 100}, {0, 7}, {9, 0}}};
  const LayerInputs inputs(config);
  for (const LayerPath path : layer_paths()) {
    verify::Report alone;
    const verify::LayerVariant variant{.workspace_tokens = 64, .path = path};
    const Outputs expected = verify::run_layer_once(inputs, variant, backend(), alone);
    ASSERT_EQ(alone.problem(), "");
    std::vector<verify::Report> reports(2);
    std::vector<std::thread> threads;
    for (verify::Report& report : reports) {
      threads.emplace_back([&] {
        for (int iteration = 0; iteration < 20; ++iteration) {
          const Outputs got = verify::run_layer_once(inputs, variant, backend(), report);
          if (report.problem().empty()) verify::check_same("thread", expected, got, report);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const verify::Report& report : reports) EXPECT_EQ(report.problem(), "");
  }
}

MLAPREFILL_FOR_EVERY_BACKEND(Poison);

}  // namespace
}  // namespace mlaprefill
