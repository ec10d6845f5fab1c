#include <fmt/format.h>

#include <iterator>

#include "replay/report.h"

namespace mlaprefill {
namespace {

using Text = std::back_insert_iterator<std::string>;

std::string percent(double part, double whole) { return fmt::format("{:.1f} %", 100.0 * share(part, whole)); }

void print_setting(Text out, const ReplayReport& report, const Trace& trace) {
  const ReplayOptions& o = report.options;
  const SchedulerOptions& s = o.scheduler;
  const TraceCounts& c = trace.counts;
  fmt::format_to(out, "replay of {} ({})\n", trace.name, trace.format);
  if (!trace.checksum.empty()) fmt::format_to(out, "  checksum   {}\n", trace.checksum);
  fmt::format_to(
      out, "  rows       {} read, {} kept, {} dropped over the limit, {} dropped empty, {} after the cut\n",
      c.read, trace.requests.size(), c.dropped_over_limit, c.dropped_empty_input, c.cut);
  for (const std::string& notice : trace.notices) fmt::format_to(out, "  notice     {}\n", notice);
  fmt::format_to(out, "  model      {} ({}), at most {} tokens\n", o.model.name, o.model.source,
                 o.model.max_context_tokens);
  fmt::format_to(out, "  dims       nope {}, rope {}, v {}, rank {}, softmax scale {:.6f}\n",
                 o.dims.qk_nope_head_dim, o.dims.qk_rope_head_dim, o.dims.v_head_dim, o.dims.kv_lora_rank,
                 o.dims.softmax_scale);
  fmt::format_to(out, "  scaled     heads {} of {} (tp {}), layers {} of {}, lengths 1/{}, requests {}\n",
                 o.dims.num_heads, o.model.dims.num_heads, o.tp, o.layers, o.model.num_layers,
                 o.length_divisor, trace.requests.size());
  fmt::format_to(out, "  schedule   {} tokens a step, {} in flight, {}, blocks of {}, cache of {} tokens\n",
                 s.budget_tokens, s.concurrency,
                 s.arrivals == Arrivals::kClosedLoop
                     ? "closed loop"
                     : fmt::format("by timestamps (a step takes {:g} ms + {:g} us a token)",
                                   s.time_model.step_s * 1e3, s.time_model.token_s * 1e6),
                 s.block_tokens, s.cache_tokens);
  fmt::format_to(out, "  plan       mode {}, workspace {} tokens{}\n", to_string(o.plan.mode),
                 o.plan.workspace_tokens, o.plan.invariant ? ", invariant" : "");
  if (o.plan_only) {
    fmt::format_to(out, "  backend    none: plans only, no arithmetic\n");
  } else {
    fmt::format_to(out, "  backend    {} ({} layer), cache {:.1f} MiB\n", report.backend_description,
                   report.path == LayerPath::kFused ? "fused" : "composed",
                   static_cast<double>(report.cache_bytes) / (1 << 20));
    fmt::format_to(out, "  weights    {}\n",
                   o.weights_path.empty() ? fmt::format("random, seed {}", o.seed) : o.weights_path);
  }
}

void print_distribution(Text out, const char* name, const Distribution& d) {
  fmt::format_to(out, "  {:<15}{:>10.0f}{:>10.0f}{:>10.0f}{:>10.0f}{:>10.0f}{:>12.1f}\n", name, d.p10, d.p50,
                 d.p90, d.p99, d.max, d.mean);
}

void print_rows(Text out, const ReplayReport& report) {
  std::vector<int64_t> rows_of_step;
  int64_t short_rows = 0, short_with_context = 0, with_context = 0;
  for (const StepRecord& step : report.prefill_steps) rows_of_step.push_back(step.rows);
  for (size_t i = 0; i < report.row_new_tokens.size(); ++i) {
    const bool is_short = report.row_new_tokens[i] < 170;
    const bool has_context = report.row_context_tokens[i] > 0;
    short_rows += is_short;
    with_context += has_context;
    short_with_context += is_short && has_context;
  }
  const auto rows = static_cast<double>(report.row_new_tokens.size());
  fmt::format_to(out, "\nrows            {:>9}{:>10}{:>10}{:>10}{:>10}{:>12}\n", "p10", "p50", "p90", "p99",
                 "max", "mean");
  print_distribution(out, "new tokens", distribution_of(report.row_new_tokens));
  print_distribution(out, "context tokens", distribution_of(report.row_context_tokens));
  print_distribution(out, "rows of a step", distribution_of(rows_of_step));
  fmt::format_to(out,
                 "  {} prefill rows in {} prefill steps; {} steps in all; {} decode tokens took budget\n",
                 report.row_new_tokens.size(), report.prefill_steps.size(), report.steps,
                 report.scheduler.decode_tokens);
  fmt::format_to(out, "  with context: {}; under 170 new tokens: {}, with context {}\n",
                 percent(static_cast<double>(with_context), rows),
                 percent(static_cast<double>(short_rows), rows),
                 percent(static_cast<double>(short_with_context), rows));
}

void print_cache(Text out, const ReplayReport& report) {
  const SchedulerCounts& c = report.scheduler;
  fmt::format_to(out, "\nprefix cache\n");
  fmt::format_to(out, "  hit {} of {} input tokens: {} (an unlimited cache, in trace order: {})\n",
                 c.hit_tokens, c.input_tokens,
                 percent(static_cast<double>(c.hit_tokens), static_cast<double>(c.input_tokens)),
                 percent(static_cast<double>(report.theoretical_hit_tokens),
                         static_cast<double>(report.trace_input_tokens)));
  fmt::format_to(out, "  {} requests done, {} dropped as larger than the cache, {} steps waited for blocks\n",
                 c.completed, c.dropped_over_cache, c.waits_for_cache);
  fmt::format_to(out, "  at most {} blocks in use, {} touched, {} evicted and used again\n",
                 report.cache_most_blocks_in_use, report.cache_blocks_touched, report.cache_evictions);
}

void print_plans(Text out, const ReplayReport& report) {
  fmt::format_to(out, "\nplans             {:>10}{:>10}{:>15}{:>17}{:>15}\n", "plans", "passes",
                 "continuations", "inactive passes", "expanded rows");
  for (const ModeStats& m : report.modes) {
    fmt::format_to(out, "  {:<16}{:>10}{:>10}{:>15}{:>17}{:>15}{}\n", to_string(m.mode), m.plans, m.passes,
                   m.continuations, m.inactive_passes, m.expanded_rows,
                   m.mode == report.options.plan.mode ? "  <- run" : "");
  }
  fmt::format_to(out, "  verdicts on the new tokens: {} active, {} mixed, {} empty\n", report.verdicts[0],
                 report.verdicts[1], report.verdicts[2]);
}

void print_work(Text out, const ReplayReport& report) {
  const double attention = report.attention_flop();
  const double expand = report.expand_flop();
  const auto tokens = static_cast<double>(report.prefill_tokens());
  const auto plans = static_cast<double>(report.prefill_steps.size());
  fmt::format_to(out, "\nwork (visible query-key pairs only: the causal half is not counted)\n");
  fmt::format_to(out, "  attention {:.4g} TFLOP, up-projection {:.4g} TFLOP, {} of attention\n",
                 attention * 1e-12, expand * 1e-12, percent(expand, attention));
  fmt::format_to(out, "\ntime              {:>10}{:>10}\n", "s", "share");
  for (const NamedTime& stage : stages(report.times)) {
    if (report.options.plan_only && stage.name == std::string_view("make inputs")) break;
    fmt::format_to(out, "  {:<16}{:>10.3f}{:>10}\n", stage.name, stage.seconds,
                   percent(stage.seconds, report.total_s));
  }
  fmt::format_to(out, "  {:<16}{:>10.3f}\n", "all", report.total_s);
  fmt::format_to(out, "  {:.0f} steps/s; plan {:.1f} us a prefill step\n",
                 share(static_cast<double>(report.steps), report.total_s),
                 share(report.times.plan_s, plans) * 1e6);
  if (!report.options.plan_only) {
    fmt::format_to(
        out, "  {:.0f} prefill tokens/s and {:.4f} TFLOP/s in the layer alone, {:.0f} tokens/s over all\n",
        share(tokens, report.times.layer_s), share(attention + expand, report.times.layer_s) * 1e-12,
        share(tokens, report.total_s));
  }
  if (!report.simulated_ttft_s.empty()) {
    const Distribution d = distribution_of(report.simulated_ttft_s);
    fmt::format_to(
        out,
        "  simulated time to first token, by the time model named above: p50 {:.3f} s, p90 {:.3f} s, "
        "p99 {:.3f} s\n",
        d.p50, d.p90, d.p99);
  }
}

void print_check(Text out, const ReplayReport& report) {
  if (report.options.plan_only) return;
  const CheckStats& c = report.check;
  fmt::format_to(out, "\noracle (fp64, inputs made anew from the trace)\n");
  if (c.rows == 0) {
    fmt::format_to(out, "  no row was checked\n");
    return;
  }
  fmt::format_to(out, "  {} rows checked, {} out of tolerance\n", c.rows, c.mismatches);
  fmt::format_to(
      out, "  worst output error {:.3g} (tolerance of that row {:.3g}), worst LSE error {:.3g} ({:.3g})\n",
      c.worst_out_error, c.worst_out_tolerance, c.worst_lse_error, c.worst_lse_tolerance);
  for (const Mismatch& m : c.first_mismatches) {
    fmt::format_to(
        out,
        "  MISMATCH step {}, request {}, position {}, head {}, layer {}: output error {:.3g} (tolerance "
        "{:.3g}), LSE error {:.3g} ({:.3g})\n",
        m.step, m.request, m.position, m.head, m.layer, m.out_error, m.out_tolerance, m.lse_error,
        m.lse_tolerance);
  }
}

}  // namespace

std::string report_text(const ReplayReport& report, const Trace& trace) {
  std::string text;
  const Text out = std::back_inserter(text);
  print_setting(out, report, trace);
  print_rows(out, report);
  print_cache(out, report);
  print_plans(out, report);
  print_work(out, report);
  print_check(out, report);
  return text;
}

}  // namespace mlaprefill
