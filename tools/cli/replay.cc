// `mlaprefill replay`: replays a request trace through scheduler, planner and layer.
#include "replay/replay.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common.h"
#include "core/error.h"
#include "io/file.h"
#include "io/models/model.h"
#include "io/traces/trace.h"
#include "replay/workloads.h"

namespace mlaprefill::cli {
namespace {

// What a built-in workload is cut down to when it is computed and not only planned: about a minute on two
// cores.
constexpr int64_t kComputedRequests = 80;
constexpr int64_t kPlannedRequests = 2000;
constexpr int64_t kComputedLengthDivisor = 16;
constexpr int32_t kComputedHeads = 8;

constexpr int64_t kBudgetTokens = 8192;
constexpr int64_t kBlockTokens = 64;
constexpr int64_t kCacheTokens = int64_t{1} << 21;
constexpr int64_t kCacheBytes = int64_t{4} << 30;  // of a cache that is really there
constexpr int64_t kLatentElementBytes = 2;

constexpr int64_t kMaxInteger = int64_t{1} << 40;

struct ReplayArgs {
  std::string trace_path;
  std::string workload;  // empty: agentic
  std::string model = "deepseek-v3";
  std::string device = "cpu";
  std::string backend;
  std::string format = "auto";
  std::string time_unit;
  std::string arrivals = "closed";
  std::string mode = "bridge";
  std::string json_path, html_path, timeline_path;
  // Left out: a default that depends on the rest.
  std::optional<int32_t> tp;
  std::optional<int64_t> requests;
  std::optional<int64_t> length_divisor;
  std::optional<int64_t> trace_block_tokens;
  std::optional<int64_t> budget;
  std::optional<int64_t> block_size;
  std::optional<int64_t> cache_tokens;
  double step_ms = 10.0;
  double token_us = 30.0;
  bool composed = false;
  TraceOptions trace;
  ReplayOptions replay;
};

Result<double> seconds_of(const std::string& unit) {
  if (unit.empty()) return 0.0;
  if (unit == "s") return 1.0;
  if (unit == "ms") return 1e-3;
  if (unit == "us") return 1e-6;
  return invalid("--time-unit: must be s, ms or us, got {}", quote(unit));
}

Status set_model(const ReplayArgs& args, ReplayOptions& options) {
  const Result<ModelConfig> model = load_model(args.model);
  if (!model.ok()) return model.status();
  options.model = model.value();
  const bool shrink = args.trace_path.empty() && !options.plan_only;
  const int32_t heads = options.model.dims.num_heads;
  const int32_t shrunk_tp = heads % kComputedHeads == 0 ? heads / kComputedHeads : 1;
  options.tp = args.tp.value_or(shrink ? shrunk_tp : 1);
  const Result<MlaDims> dims = shard_heads(options.model.dims, options.tp);
  if (!dims.ok()) return dims.status();
  options.dims = dims.value();
  return {};
}

Result<Trace> get_trace(const ReplayArgs& args, ReplayOptions& options) {
  if (args.trace_path.empty()) {
    WorkloadOptions workload;
    workload.requests = args.requests.value_or(options.plan_only ? kPlannedRequests : kComputedRequests);
    workload.length_divisor = args.length_divisor.value_or(options.plan_only ? 1 : kComputedLengthDivisor);
    workload.max_input_tokens = options.model.max_context_tokens;
    workload.seed = options.seed;
    options.length_divisor = workload.length_divisor;
    return make_workload(args.workload.empty() ? "agentic" : args.workload, workload);
  }
  if (!args.workload.empty()) {
    return invalid("--workload: must be left out with a trace file, got {}", quote(args.workload));
  }
  if (args.length_divisor) {
    return invalid("--length-divisor: must be left out with a trace file, got {}", *args.length_divisor);
  }
  TraceOptions loading = args.trace;
  const Result<TraceFormat> format = parse_trace_format(args.format);
  if (!format.ok()) return format.status();
  loading.format = format.value();
  const Result<double> unit = seconds_of(args.time_unit);
  if (!unit.ok()) return unit.status();
  loading.time_unit_s = unit.value();
  loading.block_tokens = args.trace_block_tokens.value_or(0);
  loading.max_requests = args.requests.value_or(0);
  loading.max_input_tokens = options.model.max_context_tokens;
  return load_trace(args.trace_path, loading);
}

Status set_schedule(const ReplayArgs& args, const Trace& trace, ReplayOptions& options) {
  SchedulerOptions& schedule = options.scheduler;
  if (args.arrivals != "closed" && args.arrivals != "timestamps") {
    return invalid("--arrivals: must be closed or timestamps, got {}", quote(args.arrivals));
  }
  schedule.arrivals = args.arrivals == "closed" ? Arrivals::kClosedLoop : Arrivals::kTimestamps;
  schedule.time_model = {args.step_ms * 1e-3, args.token_us * 1e-6};
  schedule.budget_tokens = args.budget.value_or(std::max<int64_t>(1, kBudgetTokens / options.length_divisor));
  schedule.block_tokens = args.block_size.value_or(std::gcd(kBlockTokens, trace.block_tokens));
  const int64_t token_bytes = options.layers * options.dims.latent_dim() * kLatentElementBytes;
  const int64_t affordable = options.plan_only ? kCacheTokens : kCacheBytes / token_bytes;
  schedule.cache_tokens = args.cache_tokens.value_or(std::min(kCacheTokens, affordable));
  return {};
}

Result<ReplayOptions> set_options(const ReplayArgs& args) {
  ReplayOptions options = args.replay;
  MLAPREFILL_RETURN_IF_ERROR(set_model(args, options));
  const Result<PlanMode> mode = parse_plan_mode(args.mode);
  if (!mode.ok()) return mode.status();
  options.plan.mode = mode.value();
  if (args.device != "cpu" && args.device != "cuda") {
    return invalid("--device: must be cpu or cuda, got {}", quote(args.device));
  }
  options.backend = !args.backend.empty() ? args.backend : args.device == "cuda" ? "sm90" : "cpu";
  options.path = args.composed ? LayerPath::kComposed : LayerPath::kAuto;
  return options;
}

/// The output files, opened before the work so that a path that cannot be written is known early.
class Outputs {
 public:
  Status open(const ReplayArgs& args) {
    MLAPREFILL_RETURN_IF_ERROR(open_one(args.json_path, report_json));
    MLAPREFILL_RETURN_IF_ERROR(open_one(args.html_path, report_html));
    return open_one(args.timeline_path,
                    [](const ReplayReport& report, const Trace&) { return report_timeline(report); });
  }

  Status write(const ReplayReport& report, const Trace& trace) {
    for (auto& [file, make] : files_) MLAPREFILL_RETURN_IF_ERROR(file.write(make(report, trace)));
    for (auto& [file, make] : files_) MLAPREFILL_RETURN_IF_ERROR(file.commit());
    return {};
  }

 private:
  using Make = std::string (*)(const ReplayReport&, const Trace&);

  Status open_one(const std::string& path, Make make) {
    if (path.empty()) return {};
    Result<OutputFile> file = OutputFile::create(path);
    if (!file.ok()) return file.status();
    files_.emplace_back(std::move(file).value(), make);
    return {};
  }

  std::vector<std::pair<OutputFile, Make>> files_;
};

void show_progress(const ReplayProgress& progress) {
  const double left_s =
      progress.fraction > 0.0 ? progress.elapsed_s * (1.0 - progress.fraction) / progress.fraction : 0.0;
  fmt::print(stderr, "\r{:5.1f} %  {} steps  {:.0f} tokens/s  {:.0f} s left   ", 100.0 * progress.fraction,
             progress.steps, static_cast<double>(progress.prefill_tokens) / progress.elapsed_s, left_s);
}

int run_replay(const ReplayArgs& args) {
  Result<ReplayOptions> options = set_options(args);
  if (!options.ok()) return report(options.status());
  const Result<Trace> trace = get_trace(args, options.value());
  if (!trace.ok()) return report(trace.status());
  if (Status status = set_schedule(args, trace.value(), options.value()); !status.ok()) return report(status);
  Outputs outputs;
  if (Status status = outputs.open(args); !status.ok()) return report(status);

  const bool terminal = isatty(STDERR_FILENO) != 0;
  const Result<ReplayReport> result =
      replay_trace(trace.value(), options.value(),
                   terminal ? show_progress : std::function<void(const ReplayProgress&)>());
  if (terminal) fmt::print(stderr, "\r{:70}\r", "");
  if (!result.ok()) return report(result.status());
  fmt::print("{}", report_text(result.value(), trace.value()));
  if (Status status = outputs.write(result.value(), trace.value()); !status.ok()) return report(status);
  return result.value().check.mismatches > 0 ? kMismatch : kDone;
}

void add_trace_options(CLI::App& command, ReplayArgs& args) {
  command.add_option(
      "TRACE", args.trace_path,
      "Mooncake JSONL, Azure CSV, lengths CSV or nested coding-agent JSON, told by content; or a "
      "directory of the last");
  command.add_option("--workload", args.workload, "Without TRACE: agentic or fixed; left out: agentic");
  add_integer<int64_t>(
      command, "--requests", args.requests, 1, kMaxInteger,
      "Keep the first N; left out: all of a trace, 80 (2000 with --plan-only) of a workload");
  add_integer<int64_t>(command, "--length-divisor", args.length_divisor, 1, kMaxInteger,
                       "Divides a workload's lengths; left out: 16, 1 with --plan-only");
  command.add_option("--format", args.format, "auto, mooncake, azure, lengths or agentic")
      ->capture_default_str();
  add_integer<int64_t>(command, "--trace-block-tokens", args.trace_block_tokens, 1, kMaxInteger,
                       "Tokens of one prefix id; left out: the format's own (Mooncake: 512)");
  command.add_option("--time-unit", args.time_unit,
                     "Unit of numeric arrivals: s, ms or us; left out: the format's");
  command.add_flag("--clamp", args.trace.clamp_to_limit,
                   "Shorten inputs over the model's limit, not drop them");
  command.add_flag("!--independent-turns", args.trace.serial_sessions,
                   "Let turns of a session run at the same time");
  command.add_option("--chars-per-token", args.trace.chars_per_token, "For files that count characters")
      ->capture_default_str();
}

void add_schedule_options(CLI::App& command, ReplayArgs& args) {
  add_integer<int64_t>(command, "--budget", args.budget, 1, kMaxInteger,
                       "Tokens of a step; left out: 8192 / length divisor");
  add_integer<int64_t>(command, "--concurrency", args.replay.scheduler.concurrency, 1, kMaxInteger,
                       "Requests, or sessions, in flight");
  command
      .add_option("--arrivals", args.arrivals,
                  "closed: as one ends the next starts; timestamps: as in the trace")
      ->capture_default_str();
  command.add_option("--step-ms", args.step_ms, "--arrivals timestamps: simulated time of a step")
      ->capture_default_str();
  command.add_option("--token-us", args.token_us, "--arrivals timestamps: and of each of its tokens")
      ->capture_default_str();
  add_integer<int64_t>(command, "--block-size", args.block_size, 1, kMaxInteger,
                       "Tokens of a cache block; left out: 64 or a divisor of the trace's");
  add_integer<int64_t>(command, "--cache-tokens", args.cache_tokens, 1, kMaxInteger,
                       "Tokens the cache holds; left out: 2097152, at most 4 GiB when computing");
}

void add_run_options(CLI::App& command, ReplayArgs& args) {
  command
      .add_option("--model", args.model,
                  "deepseek-v2-lite, deepseek-v3, kimi-k2, glm, minicpm3 or a config.json")
      ->capture_default_str();
  add_integer<int32_t>(
      command, "--tp", args.tp, 1, 256,
      "Ranks that share the heads; left out: 1, for a computed workload what leaves 8 heads");
  add_integer<int64_t>(command, "--layers", args.replay.layers, 1, kMaxInteger, "Layers to run of each step");
  command.add_flag("--plan-only", args.replay.plan_only, "Schedule and plan, compute nothing");
  command.add_option("--mode", args.mode, "Plan mode: bridge, min_continuation, vllm or even_split")
      ->capture_default_str();
  add_integer<int64_t>(command, "--workspace-tokens", args.replay.plan.workspace_tokens, 1, kMaxInteger,
                       "Most rows a pass expands");
  command.add_flag("--invariant", args.replay.plan.invariant, "Cut requests at key tiles only");
  command.add_option("--device", args.device, "cpu or cuda")->capture_default_str();
  command.add_option("--backend", args.backend,
                     "Backend: cpu, reference or sm90; left out: that of the device");
  add_cpu_options(command, args.replay.backend_options);
  command.add_flag("--composed", args.composed, "Expand and attend even where the backend has a fused layer");
  add_integer<uint64_t>(command, "--seed", args.replay.seed, 0, ~uint64_t{0},
                        "Of workload, inputs and checked rows");
  add_integer<int64_t>(command, "--check-rows", args.replay.check_rows, 0, 1 << 20,
                       "Rows of each step compared with the oracle");
  command.add_option("--weights", args.replay.weights_path,
                     "Safetensors with kv_b_proj; left out: random weights");
  add_integer<int64_t>(command, "--layer", args.replay.weights_layer, 0, 1 << 20,
                       "First layer taken from --weights");
  command.add_option("--json", args.json_path, "Write the report as JSON");
  command.add_option("--html", args.html_path, "Write the report as a page");
  command.add_option("--timeline", args.timeline_path, "Write the steps in Chrome trace format");
}

}  // namespace

void add_replay(CLI::App& app, int& exit_status) {
  const auto args = std::make_shared<ReplayArgs>();
  CLI::App* command =
      add_command(app, exit_status, "replay", "Replay a request trace through scheduler and layer",
                  [args] { return run_replay(*args); });
  add_trace_options(*command, *args);
  add_schedule_options(*command, *args);
  add_run_options(*command, *args);
}

}  // namespace mlaprefill::cli
