#include "replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "replay/layer_runner.h"
#include "replay/step_batch.h"
#include "replay/stopwatch.h"

namespace mlaprefill {
namespace {

constexpr double kProgressInterval_s = 0.25;
constexpr PlanMode kModes[] = {PlanMode::kBridge, PlanMode::kMinContinuation, PlanMode::kVllm,
                               PlanMode::kEvenSplit};

void count_plan(const Plan& plan, ModeStats& stats) {
  ++stats.plans;
  stats.passes += std::ssize(plan.passes);
  stats.expanded_rows += plan.cost.expanded_rows;
  for (const Pass& pass : plan.passes) stats.inactive_passes += pass.all_rows_active ? 0 : 1;
  for (const Span& span : plan.spans) stats.continuations += span.continuation ? 1 : 0;
}

/// Blocks the scheduler can hand out at most: those of the whole trace, or as many as the cache may have.
int64_t cache_blocks(const Trace& trace, const SchedulerOptions& options) {
  int64_t needed = 0;
  const int64_t allowed = options.cache_tokens / options.block_tokens;
  for (const TraceRequest& request : trace.requests) {
    needed += (request.input_tokens + std::min(request.output_tokens, options.cache_tokens)) /
                  options.block_tokens +
              1;
    if (needed >= allowed) return allowed;
  }
  return needed;
}

class Replay {
 public:
  Replay(const Trace& trace, const ReplayOptions& options, Scheduler scheduler)
      : trace_(trace), scheduler_(std::move(scheduler)), batch_(options.scheduler.block_tokens) {
    report_.options = options;
    for (const PlanMode mode : kModes) report_.modes.push_back({.mode = mode});
  }

  Status prepare() {
    if (report_.options.plan_only) return {};
    Result<std::unique_ptr<LayerRunner>> runner =
        LayerRunner::create(report_.options, trace_, cache_blocks(trace_, report_.options.scheduler));
    if (!runner.ok()) return runner.status();
    runner_ = std::move(runner).value();
    device_ = runner_->backend().device_properties();
    report_.backend_description = runner_->backend().description();
    report_.path = runner_->path();
    report_.cache_bytes = runner_->cache_bytes();
    return {};
  }

  Status run(const std::function<void(const ReplayProgress&)>& progress) {
    for (const TraceRequest& request : trace_.requests) report_.trace_input_tokens += request.input_tokens;
    Step step;
    Stopwatch watch;
    double next_progress_s = kProgressInterval_s;
    while (true) {
      const double begin_s = report_.total_s;
      if (!scheduler_.next(step)) break;
      StepRecord record;
      record.begin_s = begin_s;
      record.times.schedule_s = watch.lap_s();
      if (!step.rows.empty()) {
        if (Status status = run_prefill(step, watch, record); !status.ok()) {
          return Status(status.code(), fmt::format("step {}: {}", report_.steps, status.message()));
        }
      }
      add_times(record.times);
      report_.total_s += sum(record.times);
      ++report_.steps;
      if (progress && report_.total_s >= next_progress_s) {
        next_progress_s = report_.total_s + kProgressInterval_s;
        report_progress(progress);
      }
    }
    return {};
  }

  ReplayReport finish() && {
    report_.scheduler = scheduler_.counts();
    report_.theoretical_hit_tokens = theoretical_hit_tokens(trace_, report_.options.scheduler.block_tokens);
    report_.cache_evictions = scheduler_.cache().evictions();
    report_.cache_blocks_touched = scheduler_.cache().blocks_touched();
    report_.cache_most_blocks_in_use = scheduler_.cache().most_blocks_in_use();
    const auto ttft = scheduler_.times_to_first_token_s();
    report_.simulated_ttft_s.assign(ttft.begin(), ttft.end());
    return std::move(report_);
  }

 private:
  Status run_prefill(const Step& step, Stopwatch& watch, StepRecord& record) {
    batch_.build(step, scheduler_);
    if (runner_) batch_.map_slots(step, scheduler_);
    record.times.schedule_s += watch.lap_s();
    const Result<Plan> plan = make_plan(report_.options.dims, batch_.view(), report_.options.plan, device_);
    record.times.plan_s = watch.lap_s();
    if (!plan.ok()) return plan.status();
    MLAPREFILL_RETURN_IF_ERROR(compare_modes(plan.value()));
    record_step(step, plan.value(), record);
    record.times.compare_s = watch.lap_s();
    if (runner_) {
      MLAPREFILL_RETURN_IF_ERROR(
          runner_->run(report_.steps, step, batch_, plan.value(), record.times, report_.check));
    }
    watch.lap_s();
    report_.prefill_steps.push_back(record);
    return {};
  }

  /// The same batch in every mode, on the same workspace.
  Status compare_modes(const Plan& plan) {
    for (ModeStats& stats : report_.modes) {
      if (stats.mode == plan.options.mode) {
        count_plan(plan, stats);
        continue;
      }
      PlanOptions options = plan.options;
      options.mode = stats.mode;
      options.strict = false;
      const Result<Plan> other = make_plan(plan.dims, batch_.lengths(), options, device_);
      if (!other.ok()) return other.status();
      count_plan(other.value(), stats);
    }
    return {};
  }

  void record_step(const Step& step, const Plan& plan, StepRecord& record) {
    record.rows = static_cast<int32_t>(step.rows.size());
    record.passes = static_cast<int32_t>(plan.passes.size());
    record.new_tokens = step.prefill_tokens;
    record.decode_tokens = step.decode_tokens;
    record.attention_flop = plan.cost.attention_flop;
    record.expand_flop = plan.cost.expand_flop;
    for (const PrefillRow& row : step.rows) {
      record.context_tokens += row.context_tokens;
      report_.row_new_tokens.push_back(row.new_tokens);
      report_.row_context_tokens.push_back(row.context_tokens);
    }
    report_.visible_pairs += plan.cost.visible_pairs;
    ++report_.verdicts[static_cast<size_t>(plan.verdict)];
  }

  static double sum(const StageTimes& t) {
    return t.schedule_s + t.plan_s + t.compare_s + t.inputs_s + t.append_s + t.layer_s + t.check_s;
  }

  void add_times(const StageTimes& t) {
    report_.times.schedule_s += t.schedule_s;
    report_.times.plan_s += t.plan_s;
    report_.times.compare_s += t.compare_s;
    report_.times.inputs_s += t.inputs_s;
    report_.times.append_s += t.append_s;
    report_.times.layer_s += t.layer_s;
    report_.times.check_s += t.check_s;
  }

  void report_progress(const std::function<void(const ReplayProgress&)>& progress) const {
    const int64_t computed = report_.prefill_tokens();
    const int64_t done = computed + scheduler_.counts().hit_tokens;
    progress({.steps = report_.steps,
              .prefill_tokens = computed,
              .fraction = static_cast<double>(done) /
                          static_cast<double>(std::max<int64_t>(report_.trace_input_tokens, 1)),
              .elapsed_s = report_.total_s});
  }

  const Trace& trace_;
  Scheduler scheduler_;
  StepBatch batch_;
  DeviceProperties device_;
  std::unique_ptr<LayerRunner> runner_;
  ReplayReport report_;
};

Status validate(const ReplayOptions& options) {
  if (options.layers < 1 || options.layers > options.model.num_layers) {
    return invalid("layers: must be 1 to the model's {}, got {}", options.model.num_layers, options.layers);
  }
  if (options.check_rows < 0) return invalid("check rows: must be >= 0, got {}", options.check_rows);
  if (!options.weights_path.empty() && options.weights_layer < 0) {
    return invalid("layer: must be >= 0, got {}", options.weights_layer);
  }
  return {};
}

}  // namespace

Result<ReplayReport> replay_trace(const Trace& trace, const ReplayOptions& options,
                                  const std::function<void(const ReplayProgress&)>& progress) {
  MLAPREFILL_RETURN_IF_ERROR(validate(options));
  Result<Scheduler> scheduler = Scheduler::create(trace, options.scheduler);
  if (!scheduler.ok()) return scheduler.status();
  Replay replay(trace, options, std::move(scheduler).value());
  MLAPREFILL_RETURN_IF_ERROR(replay.prepare());
  MLAPREFILL_RETURN_IF_ERROR(replay.run(progress));
  return std::move(replay).finish();
}

}  // namespace mlaprefill
