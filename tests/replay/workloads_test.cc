#include "replay/workloads.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "replay/report.h"
#include "replay/scheduler.h"

namespace mlaprefill {
namespace {

TEST(Workloads, AgenticHasTheStatisticsItIsMadeFrom) {
  WorkloadOptions options;
  options.requests = 2000;
  const Trace trace = make_workload("agentic", options).value();
  ASSERT_EQ(trace.requests.size(), 2000u);
  EXPECT_EQ(trace.num_sessions, 200);
  std::vector<int64_t> outputs;
  int64_t inputs = 0;
  for (const TraceRequest& request : trace.requests) {
    EXPECT_LE(request.input_tokens, 156070);
    outputs.push_back(request.output_tokens);
    inputs += request.input_tokens;
  }
  const Distribution output = distribution_of(outputs);
  EXPECT_NEAR(output.p50, 239.0, 25.0);
  EXPECT_NEAR(output.p90, 894.0, 100.0);
  const double hit_rate =
      share(static_cast<double>(theoretical_hit_tokens(trace, 64)), static_cast<double>(inputs));
  EXPECT_GT(hit_rate, 0.85);
  EXPECT_LT(hit_rate, 0.97);
}

TEST(Workloads, SeedDecides) {
  WorkloadOptions options;
  const Trace first = make_workload("agentic", options).value();
  const Trace again = make_workload("agentic", options).value();
  options.seed = 2;
  const Trace other = make_workload("agentic", options).value();
  EXPECT_EQ(first.blocks, again.blocks);
  EXPECT_EQ(first.requests[0].input_tokens, again.requests[0].input_tokens);
  EXPECT_NE(first.requests[0].input_tokens, other.requests[0].input_tokens);
}

TEST(Workloads, LengthsAreDividedAndLimited) {
  WorkloadOptions options;
  options.length_divisor = 16;
  const Trace fixed = make_workload("fixed", options).value();
  EXPECT_EQ(fixed.requests[0].input_tokens, 512);
  EXPECT_EQ(fixed.requests[0].output_tokens, 8);
  options.max_input_tokens = 1000;
  const Trace agentic = make_workload("agentic", options).value();
  for (const TraceRequest& request : agentic.requests) {
    EXPECT_LE(request.input_tokens, 1000);
  }
}

TEST(Workloads, RefusesBadOptions) {
  EXPECT_EQ(make_workload("x", {}).status().message(), "workload: must be agentic or fixed, got \"x\"");
  EXPECT_FALSE(make_workload("fixed", {.requests = 0}).ok());
  EXPECT_FALSE(make_workload("fixed", {.length_divisor = 0}).ok());
}

}  // namespace
}  // namespace mlaprefill
