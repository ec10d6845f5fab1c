#include "io/traces/trace.h"

#include <gtest/gtest.h>

#include "traces/test_data.h"

namespace mlaprefill {
namespace {

constexpr std::string_view kLengths =
    "num_prefill_tokens,num_decode_tokens\n100,1\n500,2\n0,3\n200,4\n300,0\n";

Trace parse(std::string_view text, const TraceOptions& options) {
  Result<Trace> trace = parse_trace(text, "t", options);
  EXPECT_TRUE(trace.ok()) << trace.status().message();
  return trace.ok() ? std::move(trace).value() : Trace();
}

TEST(Trace, DropsInputsOverTheLimitAndCounts) {
  TraceOptions options;
  options.max_input_tokens = 200;
  const Trace trace = parse(kLengths, options);
  EXPECT_EQ(trace.counts.read, 5);
  EXPECT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.counts.dropped_over_limit, 2);
  EXPECT_EQ(trace.counts.dropped_empty_input, 1);
  EXPECT_EQ(trace.notices.at(0), "2 rows with an input over the model's 200 tokens were dropped");
  EXPECT_EQ(trace.notices.at(1), "1 rows without input tokens were dropped");
}

TEST(Trace, ClampsInputsAndTheirBlocks) {
  TraceOptions options;
  options.max_input_tokens = 1030;
  options.clamp_to_limit = true;
  const Trace trace = parse("{\"input_length\": 2000, \"hash_ids\": [1, 2, 3, 4]}", options);
  EXPECT_EQ(trace.counts.clamped, 1);
  EXPECT_EQ(trace.requests.at(0).input_tokens, 1030);
  EXPECT_EQ(trace.blocks_of(trace.requests[0]).size(), 2u);
}

TEST(Trace, CutsAfterTheFirstKeptRequests) {
  TraceOptions options;
  options.max_requests = 2;
  const Trace trace = parse(kLengths, options);
  EXPECT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.counts.cut, 2);
}

TEST(Trace, KeepsTheFilesOrderOfTies) {
  const Trace trace = parse("arrived_at,num_prefill_tokens\n3,1\n0,2\n3,3\n0,4\n", {});
  std::vector<int64_t> inputs;
  for (const TraceRequest& request : trace.requests) inputs.push_back(request.input_tokens);
  EXPECT_EQ(inputs, (std::vector<int64_t>{2, 4, 1, 3}));
  EXPECT_EQ(trace.counts.reordered, 2);
}

TEST(Trace, FormatCanBeForced) {
  TraceOptions azure;
  azure.format = TraceFormat::kAzure;
  EXPECT_FALSE(parse_trace(kLengths, "t", azure).ok());
  TraceOptions mooncake;
  mooncake.format = TraceFormat::kMooncake;
  EXPECT_FALSE(parse_trace(kLengths, "t", mooncake).ok());
  TraceOptions lengths;
  lengths.format = TraceFormat::kLengths;
  EXPECT_TRUE(parse_trace(kLengths, "t", lengths).ok());
  EXPECT_FALSE(load_trace(sample_trace("azure.csv"), lengths).ok());
  EXPECT_EQ(parse_trace_format("agentic").value(), TraceFormat::kAgentic);
  EXPECT_EQ(parse_trace_format("x").status().message(),
            "trace format: must be one of auto, mooncake, azure, lengths, agentic, got \"x\"");
}

TEST(Trace, RefusesTextsEmptyFilesAndMissingOnes) {
  EXPECT_EQ(parse_trace("", "t", {}).status().message(), "t:1: file: must hold a trace, got no content");
  EXPECT_EQ(parse_trace("[{\"conversations\": []}]", "t", {}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(load_trace(sample_trace("none.csv"), {}).status().code(), StatusCode::kIoError);
  TraceOptions small;
  small.max_file_bytes = 10;
  EXPECT_EQ(load_trace(sample_trace("azure.csv"), small).status().code(), StatusCode::kLimitExceeded);
}

TEST(Trace, RefusesTimesBeyondAnyClock) {
  EXPECT_EQ(parse_trace("arrived_at,num_prefill_tokens\n1e300,1\n", "t", {}).status().message(),
            "t:2: arrival: must be within 1e+12 s of the clock's zero, got 1e+300 s");
  EXPECT_EQ(parse_trace("{\"input_length\": 1, \"delay\": 1e300}", "t", {}).status().message(),
            "t:1: delay: must be at most 1e+12 s, got 1e+297 s");
}

TEST(Trace, ChecksOptions) {
  TraceOptions options;
  options.chars_per_token = 0.5;
  EXPECT_EQ(parse_trace(kLengths, "t", options).status().message(), "chars_per_token: must be >= 1, got 0.5");
}

}  // namespace
}  // namespace mlaprefill
