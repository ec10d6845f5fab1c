// What a replay measured.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "io/models/model.h"
#include "io/traces/trace.h"
#include "mlaprefill/backend.h"
#include "mlaprefill/layer.h"
#include "mlaprefill/plan.h"
#include "replay/scheduler.h"

namespace mlaprefill {

/// What a replay is asked to do.
struct ReplayOptions {
  ModelConfig model;
  int32_t tp = 1;
  MlaDims dims;                ///< of one rank
  int64_t length_divisor = 1;  ///< lengths of a built-in workload were divided by this; 1: not
  SchedulerOptions scheduler;
  PlanOptions plan;
  bool plan_only = false;
  int64_t layers = 1;
  uint64_t seed = 1;
  int64_t check_rows = 1;  ///< (query, head) rows of each step compared with the oracle
  std::string backend = "cpu";
  BackendOptions backend_options;
  LayerPath path = LayerPath::kAuto;
  std::string weights_path;  ///< safetensors with kv_b_proj; empty: seeded random weights
  int64_t weights_layer = 0;
};

/// Seconds of the host's clock, by what they were spent on.
struct StageTimes {
  double schedule_s = 0.0;
  double plan_s = 0.0;
  double compare_s = 0.0;  ///< plans in the other modes, for the comparison table
  double inputs_s = 0.0;   ///< making latents and queries
  double append_s = 0.0;
  double layer_s = 0.0;
  double check_s = 0.0;
};

/// One step that had prompt tokens.
struct StepRecord {
  double begin_s = 0.0;  ///< since the start of the replay
  StageTimes times;
  int32_t rows = 0;
  int32_t passes = 0;
  int64_t new_tokens = 0;
  int64_t context_tokens = 0;
  int64_t decode_tokens = 0;
  double attention_flop = 0.0;  ///< of one layer
  double expand_flop = 0.0;
};

struct ModeStats {
  PlanMode mode = PlanMode::kBridge;
  int64_t plans = 0;
  int64_t passes = 0;
  int64_t continuations = 0;    ///< spans that go on with a request an earlier pass began
  int64_t inactive_passes = 0;  ///< passes naming a request without a query or key in them
  int64_t expanded_rows = 0;
};

struct Mismatch {
  int64_t step = 0;
  int32_t request = 0;
  int64_t position = 0;
  int32_t head = 0;
  int64_t layer = 0;
  double out_error = 0.0;
  double out_tolerance = 0.0;
  double lse_error = 0.0;
  double lse_tolerance = 0.0;
};

struct CheckStats {
  int64_t rows = 0;
  int64_t mismatches = 0;
  double worst_out_ratio = 0.0;  ///< largest error / its tolerance
  double worst_out_error = 0.0;  ///< of that row
  double worst_out_tolerance = 0.0;
  double worst_lse_ratio = 0.0;
  double worst_lse_error = 0.0;
  double worst_lse_tolerance = 0.0;
  std::vector<Mismatch> first_mismatches;
};

struct ReplayReport {
  ReplayOptions options;
  std::string backend_description;  ///< empty with plan_only
  LayerPath path = LayerPath::kAuto;

  int64_t steps = 0;  ///< decode-only ones included
  double total_s = 0.0;
  StageTimes times;
  std::vector<StepRecord> prefill_steps;
  std::vector<int64_t> row_new_tokens;  ///< one entry a prefill row
  std::vector<int64_t> row_context_tokens;
  int64_t visible_pairs = 0;        ///< of one head and layer
  int64_t verdicts[3] = {0, 0, 0};  ///< plans by Verdict
  std::vector<ModeStats> modes;

  SchedulerCounts scheduler;
  int64_t theoretical_hit_tokens = 0;
  int64_t trace_input_tokens = 0;
  int64_t cache_evictions = 0;
  int64_t cache_blocks_touched = 0;
  int64_t cache_most_blocks_in_use = 0;
  int64_t cache_bytes = 0;  ///< of all layers; 0 with plan_only
  std::vector<double> simulated_ttft_s;

  CheckStats check;

  int64_t prefill_tokens() const;
  double attention_flop() const;  ///< of all layers run
  double expand_flop() const;
};

/// Quantiles (nearest rank) and mean of a list; zeros for an empty one.
struct Distribution {
  double p10 = 0.0, p50 = 0.0, p90 = 0.0, p99 = 0.0, max = 0.0, mean = 0.0;
};

template <typename T>
Distribution distribution_of(std::vector<T> values) {
  Distribution d;
  if (values.empty()) return d;
  std::sort(values.begin(), values.end());
  const auto rank = [&values](double q) {
    return static_cast<double>(values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)]);
  };
  double sum = 0.0;
  for (const T value : values) sum += static_cast<double>(value);
  return {rank(0.10), rank(0.50), rank(0.90),
          rank(0.99), rank(1.0),  sum / static_cast<double>(values.size())};
}

/// What share `part` is of `whole`, 0 when the whole is 0.
inline double share(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

struct NamedTime {
  const char* name;
  double seconds;
};
/// The stages in the order they run.
std::array<NamedTime, 7> stages(const StageTimes& times);

/// The table for people.
std::string report_text(const ReplayReport& report, const Trace& trace);

/// One JSON object, schema "mlaprefill.replay/1" (docs/replay.md).
std::string report_json(const ReplayReport& report, const Trace& trace);

/// A page that needs nothing but itself: the figures and a few charts.
std::string report_html(const ReplayReport& report, const Trace& trace);

/// Chrome trace format (chrome://tracing, Perfetto): one slice a prefill step, one inside it for each stage.
std::string report_timeline(const ReplayReport& report);

}  // namespace mlaprefill
