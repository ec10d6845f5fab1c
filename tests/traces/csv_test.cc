#include <gtest/gtest.h>

#include "io/traces/trace.h"
#include "traces/test_data.h"

namespace mlaprefill {
namespace {

std::string message_of(std::string_view text, const TraceOptions& options = {}) {
  const Result<Trace> trace = parse_trace(text, "t.csv", options);
  EXPECT_FALSE(trace.ok());
  return trace.status().message();
}

TEST(Csv, ReadsAzureWithCrlfAndNoLastNewline) {
  const Result<Trace> trace = load_trace(sample_trace("azure.csv"), {});
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace.value().format, "azure csv");
  ASSERT_EQ(trace.value().requests.size(), 2u);
  EXPECT_EQ(trace.value().requests[1].input_tokens, 80);
  EXPECT_EQ(trace.value().requests[1].output_tokens, 1);
  EXPECT_NEAR(trace.value().requests[1].arrival_s, 0.5, 1e-12);
  EXPECT_EQ(trace.value().block_tokens, 0);
}

TEST(Csv, ReadsLengths) {
  const Result<Trace> trace = load_trace(sample_trace("lengths.csv"), {});
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace.value().format, "lengths csv");
  ASSERT_EQ(trace.value().requests.size(), 2u);
  EXPECT_EQ(trace.value().requests[1].input_tokens, 700);
  EXPECT_EQ(trace.value().counts.zero_output, 1);
}

TEST(Csv, TakesColumnsOfRelatives) {
  const auto vidur =
      parse_trace("arrived_at,num_prefill_tokens,num_decode_tokens\n0.25,10,2\n1.5,20,3\n", "v", {});
  ASSERT_TRUE(vidur.ok()) << vidur.status().message();
  EXPECT_DOUBLE_EQ(vidur.value().requests[1].arrival_s, 1.25);
  const auto burst = parse_trace(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,,1.5,ChatGPT,472,18,490,Conversation log\n45,,3,GPT-4,1087,0,1087,API log\n",
      "b", {});
  ASSERT_TRUE(burst.ok()) << burst.status().message();
  EXPECT_EQ(burst.value().requests[1].input_tokens, 1087);
  EXPECT_EQ(burst.value().requests[1].output_tokens, 0);
  EXPECT_DOUBLE_EQ(burst.value().requests[1].arrival_s, 40.0);
}

TEST(Csv, SharesPrefixesOfTheGivenLengths) {
  const Result<Trace> loaded = load_trace(sample_trace("session_lengths.csv"), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Trace& trace = loaded.value();
  EXPECT_EQ(trace.block_tokens, 64);
  EXPECT_EQ(trace.num_sessions, 2);
  ASSERT_EQ(trace.requests.size(), 4u);
  // By arrival: a0, b0, a1, a's sub-agent.
  const auto a0 = trace.blocks_of(trace.requests[0]);
  const auto b0 = trace.blocks_of(trace.requests[1]);
  const auto a1 = trace.blocks_of(trace.requests[2]);
  const auto sub = trace.blocks_of(trace.requests[3]);
  ASSERT_EQ(a0.size(), 4u);
  ASSERT_EQ(a1.size(), 6u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(a0[i], a1[i]);
  EXPECT_EQ(sub[0], a0[0]);
  EXPECT_NE(sub[1], a1[1]);
  EXPECT_NE(b0[0], a0[0]);
  EXPECT_DOUBLE_EQ(trace.requests[2].delay_s, 2.5);
}

TEST(Csv, SaysWhenAPrefixIsLongerThanAnyEarlierTurn) {
  const auto trace =
      parse_trace("session,t_s,input_tokens,output_tokens,prefix_hit_tokens\na,0,640,1,128\n", "t", {});
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace.value().notices.at(0),
            "128 prefix tokens are longer than any earlier turn of their session: taken as new");
}

TEST(Csv, TakesCharactersAsEstimatedTokens) {
  const std::string_view text =
      "session,turn,t_s,input_chars,output_chars,common_prefix_chars_with_previous_turn\n0,0,0,1001,9,0\n0,1,"
      "1,1600,8,1000\n";
  const auto trace = parse_trace(text, "t", {});
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace.value().requests[0].input_tokens, 251);
  EXPECT_EQ(trace.value().blocks_of(trace.value().requests[1])[2],
            trace.value().blocks_of(trace.value().requests[0])[2]);
  EXPECT_EQ(trace.value().notices.at(0),
            "the file counts characters: lengths are estimates at 4 characters a token");
  TraceOptions options;
  options.chars_per_token = 2.0;
  EXPECT_EQ(parse_trace(text, "t", options).value().requests[0].input_tokens, 501);
}

TEST(Csv, RefusesWithTheLine) {
  EXPECT_TRUE(message_of("a,b\n1,2\n").starts_with("t.csv:1: header: must name a column of input lengths"));
  EXPECT_EQ(message_of("num_prefill_tokens,num_decode_tokens\n1,2\n\n1\n"),
            "t.csv:4: line: must have 2 fields like the header, got 1");
  EXPECT_EQ(message_of("num_prefill_tokens\n-4\n"),
            "t.csv:2: field 1: must be a whole number >= 0, got \"-4\"");
  EXPECT_EQ(message_of("num_prefill_tokens\n1e3\n"),
            "t.csv:2: field 1: must be a whole number >= 0, got \"1e3\"");
  EXPECT_EQ(message_of("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,1\n"),
            "t.csv:2: TIMESTAMP: must be like 2023-11-16 18:17:03.9799600, got \"2023-11-16\"");
  EXPECT_EQ(message_of("input_tokens,input_tokens\n1,1\n"),
            "t.csv:1: header: must name each column once, got \"input_tokens\" twice");
}

TEST(Csv, BoundsMemory) {
  TraceOptions options;
  options.max_blocks = 100;
  EXPECT_EQ(message_of("session,input_tokens,prefix_hit_tokens\na,9000000000000000000,0\n", options),
            "t.csv:2: prefix blocks of the whole trace: must be <= 100, got more");
}

}  // namespace
}  // namespace mlaprefill
