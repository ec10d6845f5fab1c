#include <nlohmann/json.hpp>

#include "io/json_result.h"
#include "io/provenance.h"
#include "replay/report.h"

namespace mlaprefill {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Distribution& d) {
  return {{"p10", d.p10}, {"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}, {"max", d.max}, {"mean", d.mean}};
}

Json trace_json(const Trace& trace) {
  const TraceCounts& c = trace.counts;
  return {{"name", trace.name},
          {"format", trace.format},
          {"checksum", trace.checksum},
          {"prefix_block_tokens", trace.block_tokens},
          {"sessions", trace.num_sessions},
          {"rows",
           {{"read", c.read},
            {"kept", trace.requests.size()},
            {"dropped_over_limit", c.dropped_over_limit},
            {"dropped_empty_input", c.dropped_empty_input},
            {"cut", c.cut},
            {"clamped", c.clamped},
            {"zero_output", c.zero_output},
            {"reordered", c.reordered}}},
          {"notices", trace.notices}};
}

Json options_json(const ReplayOptions& o) {
  const SchedulerOptions& s = o.scheduler;
  Json schedule = {{"budget_tokens", s.budget_tokens},
                   {"concurrency", s.concurrency},
                   {"block_tokens", s.block_tokens},
                   {"cache_tokens", s.cache_tokens},
                   {"arrivals", s.arrivals == Arrivals::kClosedLoop ? "closed_loop" : "timestamps"}};
  if (s.arrivals == Arrivals::kTimestamps) {
    schedule["time_model"] = {{"step_s", s.time_model.step_s}, {"token_s", s.time_model.token_s}};
  }
  return {{"model",
           {{"name", o.model.name},
            {"source", o.model.source},
            {"num_heads", o.model.dims.num_heads},
            {"kv_lora_rank", o.dims.kv_lora_rank},
            {"qk_nope_head_dim", o.dims.qk_nope_head_dim},
            {"qk_rope_head_dim", o.dims.qk_rope_head_dim},
            {"v_head_dim", o.dims.v_head_dim},
            {"softmax_scale", o.dims.softmax_scale},
            {"max_context_tokens", o.model.max_context_tokens},
            {"num_layers", o.model.num_layers}}},
          {"scaled",
           {{"tp", o.tp},
            {"heads", o.dims.num_heads},
            {"layers", o.layers},
            {"length_divisor", o.length_divisor}}},
          {"schedule", std::move(schedule)},
          {"plan",
           {{"mode", to_string(o.plan.mode)},
            {"workspace_tokens", o.plan.workspace_tokens},
            {"invariant", o.plan.invariant}}},
          {"plan_only", o.plan_only},
          {"seed", o.seed},
          {"weights", o.weights_path.empty() ? "random" : o.weights_path}};
}

Json rows_json(const ReplayReport& report) {
  std::vector<int64_t> rows_of_step;
  for (const StepRecord& step : report.prefill_steps) rows_of_step.push_back(step.rows);
  return {{"count", report.row_new_tokens.size()},
          {"new_tokens", to_json(distribution_of(report.row_new_tokens))},
          {"context_tokens", to_json(distribution_of(report.row_context_tokens))},
          {"rows_of_a_step", to_json(distribution_of(rows_of_step))}};
}

Json cache_json(const ReplayReport& report) {
  const SchedulerCounts& c = report.scheduler;
  return {{"input_tokens", c.input_tokens},
          {"hit_tokens", c.hit_tokens},
          {"hit_rate", share(static_cast<double>(c.hit_tokens), static_cast<double>(c.input_tokens))},
          {"theoretical_hit_rate", share(static_cast<double>(report.theoretical_hit_tokens),
                                         static_cast<double>(report.trace_input_tokens))},
          {"requests_completed", c.completed},
          {"requests_dropped_over_cache", c.dropped_over_cache},
          {"steps_waiting_for_blocks", c.waits_for_cache},
          {"most_blocks_in_use", report.cache_most_blocks_in_use},
          {"blocks_touched", report.cache_blocks_touched},
          {"evictions", report.cache_evictions},
          {"bytes", report.cache_bytes}};
}

Json plans_json(const ReplayReport& report) {
  Json modes = Json::object();
  for (const ModeStats& m : report.modes) {
    modes[std::string(to_string(m.mode))] = {{"plans", m.plans},
                                             {"passes", m.passes},
                                             {"continuations", m.continuations},
                                             {"inactive_passes", m.inactive_passes},
                                             {"expanded_rows", m.expanded_rows}};
  }
  return {{"verdicts",
           {{"active", report.verdicts[0]}, {"mixed", report.verdicts[1]}, {"empty", report.verdicts[2]}}},
          {"modes", std::move(modes)}};
}

Json work_json(const ReplayReport& report) {
  const double flop = report.attention_flop() + report.expand_flop();
  Json work = {{"flop_convention", "visible query-key pairs only, all layers run"},
               {"visible_pairs_of_a_head", report.visible_pairs},
               {"attention_tflop", report.attention_flop() * 1e-12},
               {"up_projection_tflop", report.expand_flop() * 1e-12}};
  if (report.times.layer_s > 0.0) {
    work["layer_tflop_per_s"] = flop * 1e-12 / report.times.layer_s;
    work["layer_tokens_per_s"] = static_cast<double>(report.prefill_tokens()) / report.times.layer_s;
  }
  return work;
}

Json time_json(const ReplayReport& report) {
  const auto plans = static_cast<double>(report.prefill_steps.size());
  Json by_stage = Json::object();
  for (const NamedTime& stage : stages(report.times)) by_stage[stage.name] = stage.seconds;
  Json time = {{"total_s", report.total_s},
               {"by_stage_s", std::move(by_stage)},
               {"steps_per_s", share(static_cast<double>(report.steps), report.total_s)},
               {"plan_us_per_prefill_step", share(report.times.plan_s, plans) * 1e6}};
  if (!report.simulated_ttft_s.empty())
    time["simulated_ttft_s"] = to_json(distribution_of(report.simulated_ttft_s));
  return time;
}

Json check_json(const CheckStats& c) {
  Json mismatches = Json::array();
  for (const Mismatch& m : c.first_mismatches) {
    mismatches.push_back({{"step", m.step},
                          {"request", m.request},
                          {"position", m.position},
                          {"head", m.head},
                          {"layer", m.layer},
                          {"out_error", m.out_error},
                          {"out_tolerance", m.out_tolerance},
                          {"lse_error", m.lse_error},
                          {"lse_tolerance", m.lse_tolerance}});
  }
  return {{"rows", c.rows},
          {"mismatches", c.mismatches},
          {"worst_out_error", c.worst_out_error},
          {"worst_out_tolerance", c.worst_out_tolerance},
          {"worst_lse_error", c.worst_lse_error},
          {"worst_lse_tolerance", c.worst_lse_tolerance},
          {"first_mismatches", std::move(mismatches)}};
}

}  // namespace

std::string report_json(const ReplayReport& report, const Trace& trace) {
  Json json = new_json_result("replay", 1);
  json.update(provenance());
  json["backend"] = report.options.plan_only ? "none" : report.backend_description;
  if (!report.options.plan_only) json["layer_path"] = report.path == LayerPath::kFused ? "fused" : "composed";
  json["trace"] = trace_json(trace);
  json["options"] = options_json(report.options);
  json["steps"] = {{"all", report.steps},
                   {"prefill", report.prefill_steps.size()},
                   {"prefill_tokens", report.prefill_tokens()},
                   {"decode_tokens", report.scheduler.decode_tokens}};
  json["rows"] = rows_json(report);
  json["prefix_cache"] = cache_json(report);
  json["plans"] = plans_json(report);
  json["work"] = work_json(report);
  json["time"] = time_json(report);
  if (!report.options.plan_only) json["check"] = check_json(report.check);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mlaprefill
