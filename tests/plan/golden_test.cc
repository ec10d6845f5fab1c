// Printed plans against committed files. tests/plan/update_golden writes them anew and shows the difference.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "plan/batch.h"

namespace mlaprefill {
namespace {

using testing::Batch;
using testing::with_mode;

struct Golden {
  std::string name;
  Batch batch;
  PlanOptions options;
  DeviceProperties device;
};

std::vector<Golden> goldens() {
  const Batch mixed({4, 0, 7, 1, 16}, {2048, 64, 32, 0, 700}, 16);
  PlanOptions strict_invariant = with_mode(PlanMode::kMinContinuation, 512);
  strict_invariant.invariant = true;
  strict_invariant.strict = true;
  DeviceProperties hopper;
  hopper.num_processors = 132;
  hopper.query_tile_tokens = 128;
  hopper.key_tile_tokens = 128;
  hopper.row_alignment_rows = 8;
  return {
      {"bridge", mixed, with_mode(PlanMode::kBridge, 1024), {}},
      {"min_continuation", Batch({5, 1, 300}, {400, 90, 0}), strict_invariant, {}},
      {"vllm", mixed, with_mode(PlanMode::kVllm, 1024), {}},
      {"even_split", mixed, with_mode(PlanMode::kEvenSplit, 1024), {}},
      {"tiles", Batch({300, 1}, {1000, 5}), with_mode(PlanMode::kBridge, 1024), hopper},
      {"no_requests", Batch({}, {}), {}, {}},
  };
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class PlanGolden : public ::testing::TestWithParam<Golden> {
 protected:
  void SetUp() override {
    const Golden& golden = GetParam();
    const MlaDims deepseek_v3{128, 512, 128, 64, 128, 0.1352337788608801};
    Result<Plan> made = make_plan(deepseek_v3, golden.batch.view(), golden.options, golden.device);
    ASSERT_TRUE(made.ok()) << made.status().message();
    plan = std::move(made).value();
  }

  void compare(const std::string& suffix, const std::string& printed) const {
    const std::filesystem::path path =
        std::filesystem::path(MLAPREFILL_GOLDEN_DIR) / (GetParam().name + suffix);
    if (std::getenv("MLAPREFILL_UPDATE_GOLDEN") != nullptr) std::ofstream(path, std::ios::binary) << printed;
    EXPECT_EQ(read(path), printed) << "run tests/plan/update_golden when the change is meant";
  }

  Plan plan;
};

TEST_P(PlanGolden, Text) { compare(".txt", to_text(plan)); }
TEST_P(PlanGolden, Json) { compare(".json", to_json(plan) + "\n"); }

TEST_P(PlanGolden, JsonHasTheDocumentedKeys) {
  const auto json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json.at("schema"), "mlaprefill.plan/1");
  EXPECT_EQ(json.at("mode"), std::string(to_string(plan.options.mode)));
  EXPECT_EQ(json.at("workspace_tokens"), plan.options.workspace_tokens);
  EXPECT_EQ(json.at("block_size"), plan.block_size);
  EXPECT_EQ(json.at("requests"), plan.num_requests);
  EXPECT_EQ(json.at("verdict"), std::string(to_string(plan.verdict)));
  ASSERT_EQ(json.at("passes").size(), plan.passes.size());
  for (size_t p = 0; p < plan.passes.size(); ++p) {
    const auto& pass = json.at("passes")[p];
    EXPECT_EQ(pass.at("index"), p);
    EXPECT_EQ(pass.at("kind"), std::string(to_string(plan.passes[p].kind)));
    EXPECT_EQ(pass.at("rows"), plan.passes[p].rows);
    EXPECT_EQ(pass.at("all_rows_active"), plan.passes[p].all_rows_active);
    for (const auto& span : pass.at("spans")) {
      for (const char* key : {"request", "key_begin", "key_end", "continuation"})
        EXPECT_TRUE(span.contains(key));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PlanGolden, ::testing::ValuesIn(goldens()),
                         [](const ::testing::TestParamInfo<Golden>& golden) { return golden.param.name; });

TEST(Fingerprint, ChangesWithEveryInput) {
  const Batch batch({4, 7}, {20, 32});
  const auto print = [&](const PlanOptions& options, const DeviceProperties& device,
                         const RaggedBatch& view) {
    const Result<Plan> plan = make_plan(testing::small_dims(), view, options, device);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return fingerprint(plan.value());
  };
  const uint64_t base = print({}, {}, batch.view());
  EXPECT_EQ(print({}, {}, batch.view()), base);
  PlanOptions options;
  options.invariant = true;
  EXPECT_NE(print(options, {}, batch.view()), base);
  EXPECT_NE(print(with_mode(PlanMode::kMinContinuation, 65536), {}, batch.view()), base);
  DeviceProperties device;
  device.num_processors = 2;
  EXPECT_NE(print({}, device, batch.view()), base);
  RaggedBatch view = batch.view();
  const int32_t ids[] = {1, 2, 3, 4};
  view.block_table = {ids, 2, 2, 2};
  const uint64_t with_blocks = print({}, {}, view);
  EXPECT_NE(with_blocks, base);
  const int32_t other_ids[] = {1, 2, 4, 3};
  view.block_table.data = other_ids;
  EXPECT_NE(print({}, {}, view), with_blocks);
}

}  // namespace
}  // namespace mlaprefill
