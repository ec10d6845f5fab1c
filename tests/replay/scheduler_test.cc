#include "replay/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "io/traces/trace_builder.h"
#include "replay/workloads.h"

namespace mlaprefill {
namespace {

struct Request {
  int64_t input;
  int64_t output;
  std::vector<int64_t> blocks = {};
  int32_t session = TraceRequest::kNoSession;
  double arrival_s = 0.0;
  double delay_s = TraceRequest::kNoDelay;
};

Trace make_trace(const std::vector<Request>& requests, int64_t block_tokens) {
  TraceBuilder builder({});
  for (const Request& r : requests) {
    int32_t session = r.session;
    if (session >= 0) session = builder.session(std::to_string(session));
    std::vector<int64_t> blocks;
    for (const int64_t id : r.blocks) blocks.push_back(builder.block(0, static_cast<uint64_t>(id)));
    EXPECT_TRUE(builder
                    .add({.input_tokens = r.input,
                          .output_tokens = r.output,
                          .arrival_s = r.arrival_s,
                          .delay_s = r.delay_s,
                          .session = session},
                         blocks)
                    .ok());
  }
  return std::move(builder).finish("test", "test", block_tokens);
}

Scheduler make_scheduler(const Trace& trace, const SchedulerOptions& options) {
  Result<Scheduler> scheduler = Scheduler::create(trace, options);
  EXPECT_TRUE(scheduler.ok()) << scheduler.status().message();
  return std::move(scheduler).value();
}

std::vector<Step> all_steps(Scheduler& scheduler) {
  std::vector<Step> steps;
  for (Step step; scheduler.next(step);) steps.push_back(step);
  return steps;
}

Trace agentic(int64_t requests) {
  WorkloadOptions options;
  options.requests = requests;
  options.length_divisor = 8;
  return make_workload("agentic", options).value();
}

/// Query-key pairs of a schedule: row (context c, new n) sees n * c + n * (n + 1) / 2.
int64_t pairs(const std::vector<Step>& steps) {
  int64_t total = 0;
  for (const Step& step : steps) {
    for (const PrefillRow& row : step.rows) {
      total += row.new_tokens * row.context_tokens + row.new_tokens * (row.new_tokens + 1) / 2;
    }
  }
  return total;
}

TEST(Scheduler, SplitsAPromptByTheBudgetAndTakesDecodeTokensFirst) {
  const Trace trace = make_trace({{10, 3}, {100, 1}}, 0);
  SchedulerOptions options;
  options.budget_tokens = 40;
  Scheduler scheduler = make_scheduler(trace, options);
  const std::vector<Step> steps = all_steps(scheduler);
  ASSERT_EQ(steps.size(), 3u);
  ASSERT_EQ(steps[0].rows.size(), 2u);
  EXPECT_EQ(steps[0].rows[0].new_tokens, 10);
  EXPECT_EQ(steps[0].rows[1].new_tokens, 30);
  EXPECT_EQ(steps[1].decode_tokens, 1);
  EXPECT_EQ(steps[1].rows.at(0).new_tokens, 39);
  EXPECT_EQ(steps[1].rows.at(0).context_tokens, 30);
  EXPECT_EQ(steps[2].decode_tokens, 1);
  EXPECT_EQ(steps[2].rows.at(0).new_tokens, 31);
  EXPECT_EQ(scheduler.counts().completed, 2);
  EXPECT_EQ(scheduler.counts().decode_tokens, 2);  // 3 outputs: the first comes with the prefill
}

TEST(Scheduler, OutputsOfZeroAndOneNeverDecode) {
  const Trace trace = make_trace({{5, 0}, {5, 1}}, 0);
  Scheduler scheduler = make_scheduler(trace, {});
  EXPECT_EQ(all_steps(scheduler).size(), 1u);
  EXPECT_EQ(scheduler.counts().decode_tokens, 0);
  EXPECT_EQ(scheduler.counts().completed, 2);
}

TEST(Scheduler, FixedLengthsAtTheBudgetLeaveTails) {
  std::vector<Request> requests(40, {8192, 128});
  const Trace trace = make_trace(requests, 0);
  SchedulerOptions options;
  options.concurrency = 8;
  Scheduler scheduler = make_scheduler(trace, options);
  int64_t rows = 0, tails = 0;
  for (const Step& step : all_steps(scheduler)) {
    for (const PrefillRow& row : step.rows) {
      ++rows;
      tails += row.new_tokens < 170;
    }
  }
  EXPECT_EQ(rows, 79);
  EXPECT_EQ(tails, 39);
}

TEST(Scheduler, HitsAreWholeBlocksAndLeaveATokenToCompute) {
  // The second request is the first again; 1000 tokens are 15 whole blocks of 64 and 40 tokens.
  const Trace trace =
      make_trace({{1000, 1, {1, 2}}, {1000, 1, {1, 2}}, {1024, 1, {1, 3}}, {1024, 1, {1, 3}}}, 512);
  SchedulerOptions options;
  options.concurrency = 1;
  Scheduler scheduler = make_scheduler(trace, options);
  const std::vector<Step> steps = all_steps(scheduler);
  ASSERT_EQ(steps.size(), 4u);
  EXPECT_EQ(steps[0].rows.at(0).context_tokens, 0);
  EXPECT_EQ(steps[1].rows.at(0).context_tokens, 960);
  EXPECT_EQ(steps[1].rows.at(0).new_tokens, 40);
  EXPECT_EQ(steps[2].rows.at(0).context_tokens, 512);
  EXPECT_EQ(steps[3].rows.at(0).context_tokens, 960);  // 1024 would leave nothing to compute
  EXPECT_EQ(scheduler.counts().hit_tokens, theoretical_hit_tokens(trace, 64));
}

TEST(Scheduler, BlocksCanBeHitInTheStepThatComputesThem) {
  const Trace trace = make_trace({{128, 1, {1, 2}}, {192, 1, {1, 2, 3}}}, 64);
  Scheduler scheduler = make_scheduler(trace, {});
  Step step;
  ASSERT_TRUE(scheduler.next(step));
  ASSERT_EQ(step.rows.size(), 2u);
  EXPECT_EQ(step.rows[1].context_tokens, 128);
  const auto first = scheduler.blocks_of(0);
  const auto second = scheduler.blocks_of(1);
  EXPECT_EQ(first[0], second[0]);
  EXPECT_EQ(first[1], second[1]);
  EXPECT_NE(second[2], first[1]);
}

TEST(Scheduler, NewTokensAreInputsLessHitsAndPairsDoNotDependOnTheBudget) {
  const Trace trace = agentic(300);
  int64_t inputs = 0;
  for (const TraceRequest& request : trace.requests) inputs += request.input_tokens;
  std::set<int64_t> seen_pairs;
  for (const int64_t budget : {100, 1024, 100000}) {
    SchedulerOptions options;
    options.budget_tokens = budget;
    options.block_tokens = 16;
    options.concurrency = 1;  // so that hits do not depend on who is in flight
    Scheduler scheduler = make_scheduler(trace, options);
    const std::vector<Step> steps = all_steps(scheduler);
    int64_t new_tokens = 0;
    for (const Step& step : steps) {
      EXPECT_LE(step.prefill_tokens + step.decode_tokens, budget);
      new_tokens += step.prefill_tokens;
    }
    EXPECT_EQ(new_tokens, inputs - scheduler.counts().hit_tokens);
    EXPECT_EQ(scheduler.counts().hit_tokens, theoretical_hit_tokens(trace, 16));
    EXPECT_EQ(scheduler.counts().input_tokens, inputs);
    EXPECT_EQ(scheduler.counts().completed, 300);
    seen_pairs.insert(pairs(steps));
  }
  EXPECT_EQ(seen_pairs.size(), 1u);
}

TEST(Scheduler, RowsOfARequestFollowOneAnother) {
  const Trace trace = agentic(200);
  SchedulerOptions options;
  options.budget_tokens = 300;
  options.block_tokens = 16;
  options.concurrency = 7;
  Scheduler scheduler = make_scheduler(trace, options);
  std::map<int32_t, int64_t> computed;
  for (const Step& step : all_steps(scheduler)) {
    EXPECT_LE(step.requests_in_flight, 7);
    for (const PrefillRow& row : step.rows) {
      const auto [entry, first] = computed.try_emplace(row.request, row.context_tokens);
      EXPECT_EQ(entry->second, row.context_tokens);
      EXPECT_GT(row.new_tokens, 0);
      entry->second += row.new_tokens;
    }
  }
  for (const auto& [request, tokens] : computed) {
    EXPECT_EQ(tokens, trace.requests[static_cast<size_t>(request)].input_tokens);
  }
}

TEST(Scheduler, BlocksInUseBelongToOneRequestUnlessTheyAreShared) {
  const Trace trace = agentic(200);
  SchedulerOptions options;
  options.budget_tokens = 512;
  options.block_tokens = 16;
  options.concurrency = 9;
  options.cache_tokens = 16 * 2500;  // small: blocks must be evicted and used again
  Scheduler scheduler = make_scheduler(trace, options);
  Step step;
  while (scheduler.next(step)) {
    // Blocks at or past the rows' first new token are written this step: no two rows may write the same one.
    std::set<int32_t> written;
    for (const PrefillRow& row : step.rows) {
      const auto blocks = scheduler.blocks_of(row.request);
      for (int64_t i = row.context_tokens / 16; i <= (row.context_tokens + row.new_tokens - 1) / 16; ++i) {
        EXPECT_TRUE(written.insert(blocks[static_cast<size_t>(i)]).second);
      }
    }
    EXPECT_LE(scheduler.cache().blocks_in_use(), scheduler.cache().num_blocks());
  }
  EXPECT_GT(scheduler.cache().evictions(), 0);
  EXPECT_EQ(scheduler.cache().blocks_in_use(), 0);  // everything was given back
  EXPECT_LE(scheduler.cache().most_blocks_in_use(), 2500);
  EXPECT_LT(scheduler.counts().hit_tokens, theoretical_hit_tokens(trace, 16));
  EXPECT_EQ(scheduler.counts().completed, 200);
}

TEST(Scheduler, IsDeterministic) {
  const Trace trace = agentic(150);
  SchedulerOptions options;
  options.block_tokens = 16;
  Scheduler a = make_scheduler(trace, options);
  Scheduler b = make_scheduler(trace, options);
  const std::vector<Step> first = all_steps(a);
  const std::vector<Step> second = all_steps(b);
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) {
    ASSERT_EQ(first[i].rows.size(), second[i].rows.size());
    for (size_t r = 0; r < first[i].rows.size(); ++r) {
      EXPECT_EQ(first[i].rows[r].request, second[i].rows[r].request);
      EXPECT_EQ(first[i].rows[r].context_tokens, second[i].rows[r].context_tokens);
      EXPECT_EQ(first[i].rows[r].new_tokens, second[i].rows[r].new_tokens);
    }
  }
}

TEST(Scheduler, WaitsForBlocksAndDropsWhatCanNeverFit) {
  const Trace trace = make_trace({{64, 3}, {64, 3}, {1000, 1}, {10, 2000}}, 0);
  SchedulerOptions options;
  options.cache_tokens = 128;  // two blocks: one request of 66 tokens at a time
  Scheduler scheduler = make_scheduler(trace, options);
  all_steps(scheduler);
  EXPECT_EQ(scheduler.counts().completed, 2);
  EXPECT_EQ(scheduler.counts().dropped_over_cache, 2);
  EXPECT_GT(scheduler.counts().waits_for_cache, 0);
}

TEST(Scheduler, TurnsOfASessionRunOneAfterAnother) {
  const Trace trace = make_trace({{10, 3, {}, 0}, {10, 3, {}, 1}, {10, 3, {}, 0}, {10, 3, {}, 0}}, 0);
  SchedulerOptions options;
  options.concurrency = 8;
  Scheduler scheduler = make_scheduler(trace, options);
  const std::vector<Step> steps = all_steps(scheduler);
  EXPECT_EQ(steps.size(), 9u);  // three turns of one prefill and two decode steps
  EXPECT_EQ(steps[0].rows.size(), 2u);
  EXPECT_EQ(steps[3].rows.at(0).request, 2);
  EXPECT_EQ(steps[6].rows.at(0).request, 3);
}

TEST(Scheduler, TimestampsHoldRequestsBackAndDelaysCountFromTheTurnBefore) {
  const Trace trace = make_trace({{100, 1, {}, 0, 0.0}, {100, 1, {}, 0, 0.0, 2.0}, {100, 1, {}, 1, 1.0}}, 0);
  SchedulerOptions options;
  options.arrivals = Arrivals::kTimestamps;
  options.time_model = {.step_s = 0.1, .token_s = 0.001};
  Scheduler scheduler = make_scheduler(trace, options);
  const std::vector<Step> steps = all_steps(scheduler);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_DOUBLE_EQ(steps[0].start_s, 0.0);
  EXPECT_DOUBLE_EQ(steps[0].duration_s, 0.2);
  EXPECT_DOUBLE_EQ(steps[1].start_s, 1.0);
  EXPECT_EQ(steps[1].rows.at(0).request, 2);
  EXPECT_DOUBLE_EQ(steps[2].start_s, 2.2);
  ASSERT_EQ(scheduler.times_to_first_token_s().size(), 3u);
  EXPECT_DOUBLE_EQ(scheduler.times_to_first_token_s()[0], 0.2);
}

TEST(Scheduler, RefusesBadOptions) {
  const Trace trace = make_trace({{100, 1, {1}}}, 512);
  const auto message = [&trace](void (*change)(SchedulerOptions&)) {
    SchedulerOptions options;
    change(options);
    return Scheduler::create(trace, options).status().message();
  };
  EXPECT_EQ(message([](SchedulerOptions& o) { o.budget_tokens = 0; }), "budget: must be >= 1 token, got 0");
  EXPECT_EQ(message([](SchedulerOptions& o) { o.concurrency = 0; }), "concurrency: must be >= 1, got 0");
  EXPECT_EQ(message([](SchedulerOptions& o) { o.block_tokens = 0; }),
            "block size: must be >= 1 token, got 0");
  EXPECT_EQ(message([](SchedulerOptions& o) { o.block_tokens = 48; }),
            "block size: must divide the trace's prefix blocks of 512 tokens, got 48");
  EXPECT_EQ(message([](SchedulerOptions& o) { o.cache_tokens = 10; }),
            "cache size: must be 1 to 2147483647 blocks of 64 tokens, got 10 tokens");
  EXPECT_EQ(message([](SchedulerOptions& o) {
              o.time_model = {0.0, 0.0};
            }),
            "time model: must take time for a step or a token, got 0 s a step, 0 s a token");
}

}  // namespace
}  // namespace mlaprefill
