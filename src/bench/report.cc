#include <fmt/format.h>

#include "bench/run.h"
#include "io/json_result.h"
#include "io/provenance.h"

namespace mlaprefill::bench {
namespace {

using nlohmann::ordered_json;

double gflops(double flop, double seconds) { return flop / seconds * 1e-9; }

double ceiling(const Report& report) {
  return peak_gflops(report.peaks, report.isa, report.options.subject.dtype == DType::kBF16);
}

ordered_json config_json(const CaseOptions& options) {
  return {{"backend", options.backend},
          {"isa", options.backend_options.isa},
          {"threads", options.backend_options.num_threads},
          {"dtype", to_string(options.dtype)},
          {"heads", options.dims.num_heads},
          {"kv_lora_rank", options.dims.kv_lora_rank},
          {"qk_nope_head_dim", options.dims.qk_nope_head_dim},
          {"qk_rope_head_dim", options.dims.qk_rope_head_dim},
          {"v_head_dim", options.dims.v_head_dim},
          {"workspace_tokens", options.plan.workspace_tokens},
          {"plan_mode", to_string(options.plan.mode)},
          {"invariant", options.plan.invariant},
          {"composed", options.path == LayerPath::kComposed}};
}

ordered_json requests_json(const Shape& shape) {
  ordered_json rows = ordered_json::array();
  for (const Request& r : shape.requests) rows.push_back({{"new", r.new_tokens}, {"context", r.context}});
  return rows;
}

ordered_json timing_json(const Timing& timing, double flop) {
  return {{"median_seconds", timing.median()},
          {"min_seconds", timing.min()},
          {"gflops", gflops(flop, timing.median())},
          {"best_gflops", gflops(flop, timing.min())},
          {"rounds_seconds", timing.seconds}};
}

ordered_json result_json(const ShapeResult& result, double peak) {
  ordered_json json{{"shape", result.shape.name},
                    {"operation", result.shape.operation == Operation::kLayer ? "layer" : "attention"},
                    {"causal", result.shape.causal},
                    {"requests", requests_json(result.shape)},
                    {"attention_flop", result.work.attention_flop},
                    {"expand_flop", result.work.expand_flop},
                    {"plan_seconds", result.plan_seconds},
                    {"timing", timing_json(result.timing, result.work.total())}};
  if (peak > 0) json["share_of_peak"] = gflops(result.work.total(), result.timing.median()) / peak;
  if (result.ratio) {
    json["against"] = timing_json(*result.against, result.work.total());
    json["ratio"] = {
        {"median", result.ratio->median}, {"low", result.ratio->low}, {"high", result.ratio->high}};
    json["verdict"] = result.verdict;
  }
  return json;
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1e3); }

}  // namespace

ordered_json to_json(const Report& report) {
  ordered_json json = new_json_result("bench", 1);
  json.update(provenance());
  json.update({{"flop_convention", "visible (query, key) pairs and expanded rows only; a multiply-add is 2"},
               {"ratio_convention",
                "seconds of `against` / seconds of `subject`, paired by round; > 1: the "
                "subject is faster; [low, high] holds the median at 95 % confidence"},
               {"subject", config_json(report.options.subject)},
               {"backend", report.backend_description},
               {"isa", report.isa},
               {"rounds", report.options.rounds}});
  if (report.options.against) json["against"] = config_json(*report.options.against);
  json["peaks"] = ordered_json::array();
  for (const Peak& measured : report.peaks) {
    json["peaks"].push_back({{"isa", measured.isa},
                             {"instruction", measured.instruction},
                             {"threads", measured.threads},
                             {"gflops", measured.gflops}});
  }
  json["results"] = ordered_json::array();
  const double peak = ceiling(report);
  for (const ShapeResult& result : report.results) json["results"].push_back(result_json(result, peak));
  return json;
}

std::string to_text(const Report& report) {
  std::string text = report.backend_description + "\n";
  for (const Peak& peak : report.peaks) {
    text += fmt::format("peak {:<12} {:<14} {} threads {:>9.1f} GFLOP/s\n", peak.isa, peak.instruction,
                        peak.threads, peak.gflops);
  }
  const double peak = ceiling(report);
  text += fmt::format("\n{:<18} {:>11} {:>11} {:>10} {:>8} {:>8}", "shape", "median ms", "min ms", "GFLOP/s",
                      "of peak", "plan us");
  text += report.options.against
              ? fmt::format(" {:>11} {:>7} {:>15} {}\n", "against ms", "ratio", "95 % interval", "verdict")
              : "\n";
  for (const ShapeResult& result : report.results) {
    const double rate = gflops(result.work.total(), result.timing.median());
    text +=
        fmt::format("{:<18} {:>11} {:>11} {:>10.1f} {:>8} {:>8.1f}", result.shape.name,
                    milliseconds(result.timing.median()), milliseconds(result.timing.min()), rate,
                    peak > 0 ? fmt::format("{:.0f} %", 100 * rate / peak) : "-", result.plan_seconds * 1e6);
    if (result.ratio) {
      text += fmt::format(" {:>11} {:>7.3f} {:>7.3f}-{:<7.3f} {}", milliseconds(result.against->median()),
                          result.ratio->median, result.ratio->low, result.ratio->high, result.verdict);
    }
    text += "\n";
  }
  return text;
}

}  // namespace mlaprefill::bench
