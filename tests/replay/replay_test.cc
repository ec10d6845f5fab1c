#include "replay/replay.h"

#include <gtest/gtest.h>

#include "io/traces/trace_builder.h"
#include "replay/layer_runner.h"
#include "replay/test_options.h"

namespace mlaprefill {
namespace {

ReplayReport run(const Trace& trace, const ReplayOptions& options) {
  Result<ReplayReport> report = replay_trace(trace, options);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? std::move(report).value() : ReplayReport();
}

TEST(Replay, EveryCheckedRowIsWithinTolerance) {
  ReplayOptions options = small_options();
  options.layers = 2;
  options.check_rows = 3;
  options.path = LayerPath::kComposed;
  const Trace trace = small_trace();
  for (const PlanMode mode : {PlanMode::kBridge, PlanMode::kVllm}) {
    options.plan.mode = mode;
    options.plan.workspace_tokens = mode == PlanMode::kVllm ? 256 : 96;
    const ReplayReport report = run(trace, options);
    EXPECT_EQ(report.check.rows, 3 * static_cast<int64_t>(report.prefill_steps.size()));
    EXPECT_EQ(report.check.mismatches, 0);
    EXPECT_GT(report.check.worst_out_tolerance, 0.0);
    EXPECT_GT(report.scheduler.hit_tokens, 0);
    EXPECT_EQ(report.path, LayerPath::kComposed);
    EXPECT_EQ(report.prefill_tokens(), report.trace_input_tokens - report.scheduler.hit_tokens);
  }
}

TEST(Replay, BlocksUsedAgainGiveTheRightAnswer) {
  ReplayOptions options = small_options();
  options.check_rows = 4;
  options.scheduler.cache_tokens = 400;
  const ReplayReport report = run(small_trace(), options);
  EXPECT_GT(report.cache_evictions, 0);
  EXPECT_EQ(report.check.mismatches, 0);
}

/// Two requests, the second of which shares the first's block of 64 tokens or has one of its own.
Trace two_requests(bool shared) {
  TraceBuilder builder({});
  for (int64_t i = 0; i < 2; ++i) {
    const std::vector<int64_t> blocks{builder.block(0, shared ? 0 : static_cast<uint64_t>(i))};
    EXPECT_TRUE(builder.add({.input_tokens = 80, .output_tokens = 1}, blocks).ok());
  }
  return std::move(builder).finish("two", "test", 64);
}

TEST(Replay, AWrongBlockInTheCacheIsAMismatch) {
  ReplayOptions options = small_options();
  options.scheduler.concurrency = 1;
  options.check_rows = 8;
  const Trace shared = two_requests(true);
  for (const bool truth_is_shared : {true, false}) {
    // The scheduler believes the block is shared; the runner's content says whether it is.
    const Trace truth = two_requests(truth_is_shared);
    const auto runner = LayerRunner::create(options, truth, 100);
    ASSERT_TRUE(runner.ok()) << runner.status().message();
    Result<Scheduler> scheduler = Scheduler::create(shared, options.scheduler);
    ASSERT_TRUE(scheduler.ok());
    StepBatch batch(options.scheduler.block_tokens);
    StageTimes times;
    CheckStats check;
    Step step;
    for (int64_t index = 0; scheduler.value().next(step); ++index) {
      batch.build(step, scheduler.value());
      batch.map_slots(step, scheduler.value());
      const Plan plan = make_plan(options.dims, batch.view(), options.plan).value();
      ASSERT_TRUE(runner.value()->run(index, step, batch, plan, times, check).ok());
    }
    EXPECT_EQ(check.mismatches > 0, !truth_is_shared);
    EXPECT_EQ(check.first_mismatches.empty(), truth_is_shared);
  }
}

TEST(Replay, PlanOnlyCountsTheSameScheduleAndComputesNothing) {
  ReplayOptions options = small_options();
  const Trace trace = small_trace();
  const ReplayReport computed = run(trace, options);
  options.plan_only = true;
  options.backend = "no such backend";
  const ReplayReport planned = run(trace, options);
  EXPECT_EQ(planned.check.rows, 0);
  EXPECT_EQ(planned.steps, computed.steps);
  EXPECT_EQ(planned.row_new_tokens, computed.row_new_tokens);
  EXPECT_EQ(planned.visible_pairs, computed.visible_pairs);
  EXPECT_EQ(planned.times.layer_s, 0.0);
}

TEST(Replay, ASeedGivesTheSameRunAgain) {
  const Trace trace = small_trace();
  ReplayOptions options = small_options();
  const ReplayReport first = run(trace, options);
  const ReplayReport again = run(trace, options);
  EXPECT_EQ(first.check.worst_out_error, again.check.worst_out_error);
  options.seed = 2;
  EXPECT_NE(run(trace, options).check.worst_out_error, first.check.worst_out_error);
}

TEST(Replay, ComparesAllModesOnTheSameSteps) {
  ReplayOptions options = small_options();
  options.plan_only = true;
  options.plan.workspace_tokens = 128;
  const ReplayReport report = run(small_trace(), options);
  ASSERT_EQ(report.modes.size(), 4u);
  for (const ModeStats& mode : report.modes) {
    EXPECT_EQ(mode.plans, static_cast<int64_t>(report.prefill_steps.size())) << to_string(mode.mode);
  }
  EXPECT_LE(report.modes[0].passes, report.modes[2].passes);  // bridge against vllm
}

TEST(Replay, RefusesWhatItCannotDo) {
  const Trace trace = small_trace();
  const auto message = [&trace](ReplayOptions options) {
    return replay_trace(trace, options).status().message();
  };
  ReplayOptions options = small_options();
  options.layers = 4;
  EXPECT_EQ(message(options), "layers: must be 1 to the model's 3, got 4");
  options = small_options();
  options.backend = "nothing";
  EXPECT_EQ(replay_trace(trace, options).status().code(), StatusCode::kInvalidArgument);
  options = small_options();
  options.weights_path = "/no/such/file";
  EXPECT_EQ(replay_trace(trace, options).status().code(), StatusCode::kIoError);
}

}  // namespace
}  // namespace mlaprefill
