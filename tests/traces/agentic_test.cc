#include <gtest/gtest.h>

#include "io/traces/trace.h"
#include "traces/test_data.h"

namespace mlaprefill {
namespace {

std::string message_of(std::string_view text) {
  const Result<Trace> trace = parse_trace(text, "t.json", {});
  EXPECT_FALSE(trace.ok());
  return trace.status().message();
}

TEST(Agentic, ReadsASessionWithASubagentOverSeveralLines) {
  const Result<Trace> loaded = load_trace(sample_trace("sessions/one.json"), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Trace& trace = loaded.value();
  EXPECT_EQ(trace.format, "coding-agent json");
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[1].input_tokens, 100);  // the sub-agent's, in its place
  EXPECT_EQ(trace.counts.zero_output, 1);
  EXPECT_EQ(trace.blocks_of(trace.requests[0]).size(), 2u);  // floor(130 / 64)
  EXPECT_EQ(trace.blocks_of(trace.requests[1])[0], trace.blocks_of(trace.requests[0])[0]);
  EXPECT_DOUBLE_EQ(trace.requests[2].arrival_s, 1.5);  // never before the turn it follows
  EXPECT_DOUBLE_EQ(trace.requests[2].delay_s, 3.0);
  EXPECT_EQ(trace.num_sessions, 1);
}

TEST(Agentic, ReadsADirectoryAndKeepsLocalIdsApart) {
  const Result<Trace> loaded = load_trace(sample_trace("sessions"), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Trace& trace = loaded.value();
  ASSERT_EQ(trace.requests.size(), 4u);
  EXPECT_EQ(trace.num_sessions, 2);
  EXPECT_NE(trace.blocks_of(trace.requests[0])[0], trace.blocks_of(trace.requests[1])[0]);
  EXPECT_EQ(trace.num_distinct_blocks, 4);
}

TEST(Agentic, TakesPartialLastBlocksToo) {
  const auto trace = parse_trace(
      R"({"block_size": 64, "requests": [{"t": 0, "in": 65, "out": 1, "hash_ids": [1, 2]}]})", "t", {});
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace.value().blocks.size(), 2u);
}

TEST(Agentic, RefusesWithThePlace) {
  EXPECT_EQ(message_of(R"({"block_size": 0, "requests": []})"),
            "t.json: block_size: must be a whole number >= 1, got something else");
  EXPECT_EQ(message_of(R"({"block_size": 64, "requests": [{"t": 0, "in": -1, "out": 1}]})"),
            "t.json: requests[0].in: must be a whole number of tokens >= 0, got something else");
  EXPECT_EQ(message_of(R"({"block_size": 64, "requests": [{"t": 0, "in": 640, "out": 1, "hash_ids": [1]}]})"),
            "t.json: requests[0].hash_ids: must hold 10 ids for 640 input tokens in blocks of 64, got 1");
  EXPECT_EQ(message_of(R"({"block_size": 64, "hash_id_scope": "odd", "requests": []})"),
            "t.json: hash_id_scope: must be \"local\" or \"global\", got \"odd\"");
  std::string deep = R"({"in": 1, "out": 1, "t": 0})";
  for (int i = 0; i < 12; ++i) deep = R"({"requests": [)" + deep + "]}";
  EXPECT_NE(message_of(R"({"block_size": 64, "requests": [)" + deep + "]}").find("must nest at most 8 deep"),
            std::string::npos);
}

}  // namespace
}  // namespace mlaprefill
