#include "replay/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "replay/replay.h"
#include "replay/test_options.h"

namespace mlaprefill {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> keys_of(const ordered_json& json) {
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  return keys;
}

struct SmallRun {
  Trace trace = small_trace();
  ReplayReport report;

  explicit SmallRun(bool plan_only) {
    ReplayOptions options = small_options();
    options.plan_only = plan_only;
    report = replay_trace(trace, options).value();
  }
};

TEST(Report, JsonHasTheKeysItsSchemaPromises) {
  const SmallRun run(false);
  const ordered_json json = ordered_json::parse(report_json(run.report, run.trace));
  EXPECT_EQ(json["schema"], "mlaprefill.replay/1");
  EXPECT_EQ(keys_of(json),
            (std::vector<std::string>{"schema", "mlaprefill_version", "command", "commit", "build", "machine",
                                      "backend", "layer_path", "trace", "options", "steps", "rows",
                                      "prefix_cache", "plans", "work", "time", "check"}));
  EXPECT_EQ(keys_of(json["trace"]),
            (std::vector<std::string>{"name", "format", "checksum", "prefix_block_tokens", "sessions", "rows",
                                      "notices"}));
  EXPECT_EQ(keys_of(json["plans"]["modes"]),
            (std::vector<std::string>{"bridge", "min_continuation", "vllm", "even_split"}));
  EXPECT_EQ(keys_of(json["check"]),
            (std::vector<std::string>{"rows", "mismatches", "worst_out_error", "worst_out_tolerance",
                                      "worst_lse_error", "worst_lse_tolerance", "first_mismatches"}));
  EXPECT_EQ(json["rows"]["count"], run.report.row_new_tokens.size());
  EXPECT_EQ(json["options"]["seed"], 1);
  EXPECT_GT(json["work"]["layer_tflop_per_s"], 0.0);
}

TEST(Report, PlanOnlyJsonHasNoMeasuredWork) {
  const SmallRun run(true);
  const ordered_json json = ordered_json::parse(report_json(run.report, run.trace));
  EXPECT_EQ(json["backend"], "none");
  EXPECT_FALSE(json.contains("check"));
  EXPECT_FALSE(json["work"].contains("layer_tflop_per_s"));
}

TEST(Report, TextNamesScaleHitsModesAndCheck) {
  const SmallRun run(false);
  const std::string text = report_text(run.report, run.trace);
  for (const char* part : {"heads 2 of 4 (tp 2), layers 1 of 3", "an unlimited cache, in trace order",
                           "even_split", "rows checked, 0 out of tolerance", "prefill tokens/s", "plan "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("nan"), std::string::npos);
}

TEST(Report, HtmlStandsAlone) {
  SmallRun run(false);
  run.trace.name = "<script>\"&";
  const std::string html = report_html(run.report, run.trace);
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;&quot;&amp;"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_EQ(html.find("nan"), std::string::npos);
}

TEST(Report, TimelineHasASliceForEachPrefillStep) {
  const SmallRun run(false);
  const ordered_json timeline = ordered_json::parse(report_timeline(run.report));
  size_t steps = 0;
  double last = -1.0;
  for (const ordered_json& event : timeline["traceEvents"]) {
    EXPECT_EQ(event["ph"], "X");
    EXPECT_GE(event["dur"], 0.0);
    if (event["name"] != "step") continue;
    ++steps;
    EXPECT_GE(event["ts"], last);
    last = event["ts"];
  }
  EXPECT_EQ(steps, run.report.prefill_steps.size());
}

TEST(Report, QuantilesAreNearestRank) {
  const Distribution d = distribution_of(std::vector<int64_t>{5, 1, 3, 2, 4});
  EXPECT_EQ(d.p50, 3.0);
  EXPECT_EQ(d.max, 5.0);
  EXPECT_EQ(d.mean, 3.0);
  EXPECT_EQ(distribution_of(std::vector<int64_t>{}).p99, 0.0);
}

}  // namespace
}  // namespace mlaprefill
