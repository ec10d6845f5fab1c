#include <gtest/gtest.h>

#include <algorithm>

#include "io/traces/trace.h"
#include "traces/test_data.h"

namespace mlaprefill {
namespace {

Trace parse(std::string_view text, const TraceOptions& options = {}) {
  Result<Trace> trace = parse_trace(text, "t.jsonl", options);
  EXPECT_TRUE(trace.ok()) << trace.status().message();
  return trace.ok() ? std::move(trace).value() : Trace();
}

std::string message_of(std::string_view text, const TraceOptions& options = {}) {
  const Result<Trace> trace = parse_trace(text, "t.jsonl", options);
  EXPECT_FALSE(trace.ok());
  return trace.status().message();
}

TEST(Mooncake, ReadsTheReleaseFormat) {
  const Result<Trace> loaded = load_trace(sample_trace("small.jsonl"), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Trace& trace = loaded.value();
  EXPECT_EQ(trace.format, "mooncake jsonl");
  EXPECT_EQ(trace.block_tokens, 512);
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[1].input_tokens, 1000);
  EXPECT_EQ(trace.requests[1].output_tokens, 1);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 3.0);
  EXPECT_TRUE(std::ranges::equal(trace.blocks_of(trace.requests[0]), trace.blocks_of(trace.requests[1])));
  EXPECT_EQ(trace.blocks_of(trace.requests[2])[0], trace.blocks_of(trace.requests[0])[0]);
  EXPECT_EQ(trace.num_distinct_blocks, 4);
  EXPECT_EQ(trace.counts.read, 3);
  EXPECT_EQ(trace.counts.reordered, 0);
  EXPECT_EQ(trace.checksum, "sha256:6b931c2c24d1940afb3d2b538513380cb75659365eb0f8a5bed1fb40a2796b9e");
}

TEST(Mooncake, TakesCrlfByteOrderMarkBlankLinesAndAMissingLastNewline) {
  const Trace trace = parse("\xEF\xBB\xBF\r\n{\"input_length\": 5}\r\n\r\n{\"input_length\": 6}");
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[1].input_tokens, 6);
  EXPECT_EQ(trace.counts.zero_output, 2);
  EXPECT_EQ(trace.block_tokens, 0);
}

TEST(Mooncake, TakesAliasesAndFractionalTimes) {
  const Trace trace =
      parse(R"({"created_time": 0.5, "input_tokens": 600, "output_tokens": 2, "hash_ids": [7, 8]}
{"created_time": 1000.5, "input_tokens": 3.0, "output_tokens": null, "hash_ids": [], "extra": {"x": 1}})");
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 1.0);
  EXPECT_EQ(trace.requests[1].input_tokens, 3);
  EXPECT_EQ(trace.requests[1].output_tokens, 0);
  EXPECT_EQ(trace.blocks_of(trace.requests[1]).size(), 0u);
}

TEST(Mooncake, TimeUnitIsAnOption) {
  const std::string_view text =
      "{\"timestamp\": 0.0, \"input_length\": 1}\n{\"timestamp\": 0.2, \"input_length\": 1}";
  EXPECT_DOUBLE_EQ(parse(text).requests[1].arrival_s, 0.2e-3);
  TraceOptions seconds;
  seconds.time_unit_s = 1.0;
  EXPECT_DOUBLE_EQ(parse(text, seconds).requests[1].arrival_s, 0.2);
}

TEST(Mooncake, KeepsAll64BitsOfIds) {
  const Trace trace = parse(R"({"input_length": 512, "hash_ids": [1]}
{"input_length": 512, "hash_ids": [4294967297]}
{"input_length": 512, "hash_ids": [18446744073709551615]}
{"input_length": 512, "hash_ids": [1]})");
  EXPECT_EQ(trace.num_distinct_blocks, 3);
  EXPECT_EQ(trace.blocks_of(trace.requests[0])[0], trace.blocks_of(trace.requests[3])[0]);
}

TEST(Mooncake, NamesLineAndImpliedBlockSize) {
  const std::string message =
      message_of("{\"input_length\": 1}\n\n{\"input_length\": 1000, \"hash_ids\": [1, 2, 3]}");
  EXPECT_EQ(
      message,
      "t.jsonl:3: hash_ids: must hold 2 ids for 1000 input tokens in blocks of 512, got 3 ids, which implies "
      "blocks of 334 to 499 tokens");
  TraceOptions options;
  options.block_tokens = 400;
  EXPECT_EQ(parse("{\"input_length\": 1000, \"hash_ids\": [1, 2, 3]}", options).block_tokens, 400);
}

TEST(Mooncake, SessionsAreSerialAndCarryDelays) {
  const std::string_view text = R"({"session_id": "a", "timestamp": 1000, "input_length": 4}
{"session_id": "b", "timestamp": 500, "input_length": 5}
{"session_id": "a", "delay": 250, "input_length": 6})";
  const Trace trace = parse(text);
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.requests[0].input_tokens, 5);  // earliest arrival first
  EXPECT_EQ(trace.requests[1].input_tokens, 4);
  EXPECT_EQ(trace.requests[2].input_tokens, 6);
  EXPECT_EQ(trace.requests[1].session, trace.requests[2].session);
  EXPECT_NE(trace.requests[0].session, trace.requests[1].session);
  EXPECT_DOUBLE_EQ(trace.requests[2].delay_s, 0.25);
  EXPECT_EQ(trace.num_sessions, 2);
  EXPECT_EQ(trace.counts.reordered, 1);

  TraceOptions independent;
  independent.serial_sessions = false;
  EXPECT_EQ(parse(text, independent).requests[1].session, TraceRequest::kNoSession);
}

TEST(Mooncake, ChatIdsMeanOtherUnits) {
  const Trace trace =
      parse(R"({"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 17, "hash_ids": [1, 2]}
{"chat_id": 2, "parent_chat_id": 1, "timestamp": 2.0, "input_length": 33, "hash_ids": [1, 2, 3]})");
  EXPECT_EQ(trace.block_tokens, 16);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 1.5);
}

TEST(Mooncake, RefusesWithTheLine) {
  EXPECT_EQ(message_of("{\"input_length\": -1}"),
            "t.jsonl:1: input_length: must be a whole number of tokens >= 0, got -1");
  EXPECT_EQ(message_of("{\"input_length\": 1}\n{\"text_input\": \"hi\"}"),
            "t.jsonl:2: input_length: must be given (this tool has no tokenizer for text), got none");
  EXPECT_EQ(message_of("{\"input_length\": 1, \"timestamp\": \"x\"}"),
            "t.jsonl:1: timestamp: must be a number, got \"x\"");
  EXPECT_EQ(message_of("{\"input_length\": 1, \"delay\": -5}"), "t.jsonl:1: delay: must be >= 0, got -5");
  EXPECT_EQ(message_of("{\"input_length\": 1, \"hash_ids\": [\"x\"]}"),
            "t.jsonl:1: hash_ids[0]: must be a 64-bit whole number, got \"x\"");
  EXPECT_EQ(message_of("{\"input_length\": 1, \"hash_ids\": 3}"),
            "t.jsonl:1: hash_ids: must be a list, got 3");
  EXPECT_TRUE(message_of("{\"input_length\": 1}\n{\"input_length\":")
                  .starts_with("t.jsonl:2: line: must be one JSON object"));
  EXPECT_TRUE(message_of("{\"input_length\": 1}\n[1]").starts_with("t.jsonl:2: line: must be a JSON object"));
}

TEST(Mooncake, BoundsMemory) {
  TraceOptions options;
  options.max_blocks = 2;
  EXPECT_EQ(message_of("{\"input_length\": 1536, \"hash_ids\": [1, 2, 3]}", options),
            "t.jsonl:1: prefix blocks of the whole trace: must be <= 2, got more");
}

}  // namespace
}  // namespace mlaprefill
