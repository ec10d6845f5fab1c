// Loads the published traces when the environment says where they are: MLAPREFILL_TRACES names the folder.
#include <gtest/gtest.h>

#include <cstdlib>

#include "io/traces/trace.h"

namespace mlaprefill {
namespace {

struct Published {
  const char* file;
  const char* format;
  int64_t rows;
  int64_t block_tokens;
};

constexpr Published kPublished[] = {
    {"mooncake_conversation_2000.jsonl", "mooncake jsonl", 2000, 512},
    {"mooncake_synthetic_2000.jsonl", "mooncake jsonl", 2000, 512},
    {"AzureLLMInferenceTrace_code.csv", "azure csv", 8819, 0},
    {"AzureLLMInferenceTrace_conv.csv", "azure csv", 19366, 0},
    {"cc_agentic_mooncake512.jsonl", "mooncake jsonl", 1989, 512},
    {"cc_agentic_lengths_40_sessions.csv", "lengths csv", 3330, 64},
    {"cc_agentic_raw", "coding-agent json", 54, 64},
    {"sharegpt_lengths_2000.csv", "lengths csv", 2000, 0},
    {"arxiv_summarization_lengths_2000.csv", "lengths csv", 2000, 0},
    {"miniswe_turn_chars.csv", "character-count csv", 402, 64},
};

class PublishedTraces : public testing::TestWithParam<Published> {};

TEST_P(PublishedTraces, Load) {
  const char* folder = std::getenv("MLAPREFILL_TRACES");
  if (folder == nullptr) GTEST_SKIP() << "SKIPPED: MLAPREFILL_TRACES does not name the folder of the traces";
  const Result<Trace> trace = load_trace(std::string(folder) + "/" + GetParam().file, {});
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace.value().format, GetParam().format);
  EXPECT_EQ(trace.value().counts.read, GetParam().rows);
  EXPECT_EQ(trace.value().requests.size(), static_cast<size_t>(GetParam().rows));
  EXPECT_EQ(trace.value().block_tokens, GetParam().block_tokens);
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTraces, testing::ValuesIn(kPublished), [](const auto& published) {
  std::string name = published.param.file;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
});

}  // namespace
}  // namespace mlaprefill
