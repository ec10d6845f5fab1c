#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <iterator>

#include "replay/report.h"

namespace mlaprefill {
namespace {

struct Bar {
  std::string label;
  double value;
  std::string text;  ///< shown at the bar's end
};

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

/// Horizontal bars with the label before and the value behind each.
std::string bar_chart(std::string_view title, const std::vector<Bar>& bars) {
  constexpr int kLabelWidth = 130, kBarWidth = 380, kRow = 24;
  double largest = 0.0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value);
  std::string svg = fmt::format(
      "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 640 {}\" role=\"img\" aria-label=\"{}\">\n",
      escape(title), kRow * bars.size() + 4, escape(title));
  int y = 2;
  for (const Bar& bar : bars) {
    const double width = kBarWidth * share(bar.value, largest);
    svg += fmt::format(
        "<text x=\"{}\" y=\"{}\" class=\"label\">{}</text><rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" "
        "height=\"16\" "
        "rx=\"2\"><title>{}: {}</title></rect><text x=\"{:.1f}\" y=\"{}\" class=\"value\">{}</text>\n",
        kLabelWidth - 8, y + 13, escape(bar.label), kLabelWidth, y, width, escape(bar.label),
        escape(bar.text), kLabelWidth + width + 6, y + 13, escape(bar.text));
    y += kRow;
  }
  return svg + "</svg></figure>\n";
}

/// Rows of a length, in buckets that double.
std::string length_chart(std::string_view title, const std::vector<int64_t>& lengths) {
  std::vector<int64_t> counts;
  for (const int64_t length : lengths) {
    const auto bucket = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(length)));
    if (bucket >= counts.size()) counts.resize(bucket + 1);
    ++counts[bucket];
  }
  size_t first = 0;
  while (first < counts.size() && counts[first] == 0) ++first;
  std::vector<Bar> bars;
  for (size_t bucket = first; bucket < counts.size(); ++bucket) {
    const int64_t low = bucket == 0 ? 0 : int64_t{1} << (bucket - 1);
    const int64_t high = (int64_t{1} << bucket) - 1;
    bars.push_back({low >= high ? fmt::format("{}", low) : fmt::format("{} to {}", low, high),
                    static_cast<double>(counts[bucket]), fmt::format("{}", counts[bucket])});
  }
  return bar_chart(title, bars);
}

/// A line of up to 320 points, each the mean of neighbouring prefill steps.
template <typename Value>
std::string step_chart(std::string_view title, const std::vector<StepRecord>& steps, const Value& value) {
  constexpr size_t kPoints = 320;
  constexpr double kWidth = 620.0, kHeight = 120.0;
  const size_t stride = std::max<size_t>(1, (steps.size() + kPoints - 1) / kPoints);
  std::vector<double> means;
  for (size_t begin = 0; begin < steps.size(); begin += stride) {
    const size_t end = std::min(begin + stride, steps.size());
    double sum = 0.0;
    for (size_t i = begin; i < end; ++i) sum += value(steps[i]);
    means.push_back(sum / static_cast<double>(end - begin));
  }
  double largest = 0.0;
  for (const double mean : means) largest = std::max(largest, mean);
  std::string points;
  for (size_t i = 0; i < means.size(); ++i) {
    const double x =
        means.size() > 1 ? kWidth * static_cast<double>(i) / static_cast<double>(means.size() - 1) : 0.0;
    points += fmt::format("{:.1f},{:.1f} ", 10.0 + x, 10.0 + kHeight * (1.0 - share(means[i], largest)));
  }
  return fmt::format(
      "<figure><figcaption>{0}, mean of {1} steps a point, largest {2:.0f}</figcaption>"
      "<svg viewBox=\"0 0 640 150\" role=\"img\" aria-label=\"{0}\">"
      "<line x1=\"10\" y1=\"130\" x2=\"630\" y2=\"130\" class=\"axis\"/><polyline points=\"{3}\"/>"
      "<text x=\"10\" y=\"145\" class=\"value\">first prefill step</text>"
      "<text x=\"630\" y=\"145\" class=\"label\">step {4}</text></svg></figure>\n",
      escape(title), stride, largest, points, steps.size());
}

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5a6577; --mark: #2f6fb3; --line: #c9d1dc; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --soft: #a3adbb; --mark: #6ea8e0; --line: #3a4453; --page: #141a22; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1340px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; }
pre { font: 12px/1.45 ui-monospace, monospace; overflow-x: auto; border: 1px solid var(--line); padding: 1rem; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1.5rem; }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: .4rem; } svg { width: 100%; height: auto; }
rect { fill: var(--mark); } polyline { fill: none; stroke: var(--mark); stroke-width: 1.5; }
.axis { stroke: var(--line); } text { font-size: 12px; fill: var(--soft); } .label { text-anchor: end; }
)";

}  // namespace

std::string report_html(const ReplayReport& report, const Trace& trace) {
  std::vector<Bar> times, passes, continuations;
  for (const NamedTime& stage : stages(report.times)) {
    times.push_back({stage.name, stage.seconds, fmt::format("{:.3f} s", stage.seconds)});
  }
  for (const ModeStats& m : report.modes) {
    const std::string mode(to_string(m.mode));
    passes.push_back({mode, static_cast<double>(m.passes), fmt::format("{}", m.passes)});
    continuations.push_back({mode, static_cast<double>(m.continuations), fmt::format("{}", m.continuations)});
  }
  std::string charts = length_chart("Prefill rows by new tokens", report.row_new_tokens) +
                       length_chart("Prefill rows by context tokens", report.row_context_tokens) +
                       bar_chart("Passes by plan mode", passes) +
                       bar_chart("Continuations by plan mode", continuations) +
                       bar_chart("Host time by stage", times);
  if (!report.prefill_steps.empty()) {
    charts += step_chart("Context tokens of a prefill step", report.prefill_steps,
                         [](const StepRecord& step) { return static_cast<double>(step.context_tokens); });
    charts += step_chart("New tokens of a prefill step", report.prefill_steps,
                         [](const StepRecord& step) { return static_cast<double>(step.new_tokens); });
  }
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width\"><title>mlaprefill replay: {0}</title><style>{1}</style></head>\n<body>"
      "<h1>mlaprefill replay: {0}</h1>\n<pre>{2}</pre>\n<main>\n{3}</main></body></html>\n",
      escape(trace.name), kStyle, escape(report_text(report, trace)), charts);
}

}  // namespace mlaprefill
