// A plan as a table for people and as JSON for programs.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "mlaprefill/plan.h"

namespace mlaprefill {
namespace {

int64_t sum(const std::vector<int32_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

int64_t count_continuations(const Plan& plan) {
  return std::count_if(plan.spans.begin(), plan.spans.end(),
                       [](const Span& span) { return span.continuation; });
}

std::string fingerprint_hex(const Plan& plan) { return fmt::format("{:016x}", fingerprint(plan)); }

/// What the span does with its request's online softmax.
std::string_view softmax_role(const Span& span) {
  if (span.length() == 0) return "none";
  if (span.first) return span.last ? "whole" : "starts";
  return span.last ? "ends" : "resumes";
}

std::string bytes_for_people(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double amount = static_cast<double>(bytes);
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  for (; amount >= 1024.0; amount /= 1024.0) ++unit;
  return fmt::format("{:.1f} {}", amount, units[unit]);
}

nlohmann::ordered_json to_json(const Plan& plan, const Pass& pass, size_t index) {
  nlohmann::ordered_json spans = nlohmann::ordered_json::array();
  for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
    const Span& span = plan.spans[static_cast<size_t>(s)];
    spans.push_back({{"request", span.request},
                     {"key_begin", span.key_begin},
                     {"key_end", span.key_end},
                     {"continuation", span.continuation},
                     {"row_begin", span.row_begin},
                     {"first", span.first},
                     {"last", span.last}});
  }
  return {{"index", index},
          {"kind", to_string(pass.kind)},
          {"rows", pass.rows},
          {"all_rows_active", pass.all_rows_active},
          {"tiles", pass.tile_end - pass.tile_begin},
          {"spans", std::move(spans)}};
}

}  // namespace

std::string to_text(const Plan& plan) {
  std::string text;
  const auto line = [&text]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
    text += '\n';
  };
  line("mode         {}{}{}", to_string(plan.options.mode), plan.options.invariant ? ", invariant" : "",
       plan.options.strict ? ", strict" : "");
  line("requests     {}, {} new tokens, {} context tokens, verdict {}", plan.num_requests,
       sum(plan.query_lens), sum(plan.context_lens), to_string(plan.verdict));
  line("workspace    {} tokens, {}", plan.options.workspace_tokens,
       bytes_for_people(plan.workspace.total_bytes));
  line("passes       {}, {} spans, {} continuations, {} tiles", plan.passes.size(), plan.spans.size(),
       count_continuations(plan), plan.tiles.size());
  line("layer        {} expanded rows, {} visible pairs a head, {:.4g} GFLOP attention, {:.4g} GFLOP expand",
       plan.cost.expanded_rows, plan.cost.visible_pairs, plan.cost.attention_flop * 1e-9,
       plan.cost.expand_flop * 1e-9);
  line("fingerprint  {}", fingerprint_hex(plan));
  if (plan.passes.empty()) return text;

  line("\n{:>6}  {:<7}  {:>10}  {:<6}  {:>8}  {:>10}  {:>10}  {:>10}  {}", "pass", "kind", "rows", "active",
       "request", "row", "key begin", "key end", "softmax");
  for (size_t p = 0; p < plan.passes.size(); ++p) {
    const Pass& pass = plan.passes[p];
    for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
      const Span& span = plan.spans[static_cast<size_t>(s)];
      if (s == pass.span_begin) {
        fmt::format_to(std::back_inserter(text), "{:>6}  {:<7}  {:>10}  {:<6}", p, to_string(pass.kind),
                       pass.rows, pass.all_rows_active ? "yes" : "no");
      } else {
        text.append(35, ' ');
      }
      line("  {:>8}  {:>10}  {:>10}  {:>10}  {}", span.request, span.row_begin, span.key_begin, span.key_end,
           softmax_role(span));
    }
  }
  return text;
}

std::string to_json(const Plan& plan) {
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (size_t p = 0; p < plan.passes.size(); ++p) passes.push_back(to_json(plan, plan.passes[p], p));
  const nlohmann::ordered_json json = {
      {"schema", "mlaprefill.plan/1"},
      {"mode", to_string(plan.options.mode)},
      {"workspace_tokens", plan.options.workspace_tokens},
      {"block_size", plan.block_size},
      {"requests", plan.num_requests},
      {"verdict", to_string(plan.verdict)},
      {"passes", std::move(passes)},
      {"strict", plan.options.strict},
      {"invariant", plan.options.invariant},
      {"new_tokens", sum(plan.query_lens)},
      {"context_tokens", sum(plan.context_lens)},
      {"continuations", count_continuations(plan)},
      {"workspace_bytes", plan.workspace.total_bytes},
      {"cost",
       {{"expanded_rows", plan.cost.expanded_rows},
        {"visible_pairs", plan.cost.visible_pairs},
        {"attention_flop", plan.cost.attention_flop},
        {"expand_flop", plan.cost.expand_flop}}},
      {"fingerprint", fingerprint_hex(plan)},
  };
  return json.dump(2);
}

}  // namespace mlaprefill
