#include <nlohmann/json.hpp>

#include "replay/report.h"

namespace mlaprefill {

std::string report_timeline(const ReplayReport& report) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  constexpr double kMicro = 1e6;
  for (const StepRecord& step : report.prefill_steps) {
    double at_s = step.begin_s;
    double total_s = 0.0;
    for (const NamedTime& stage : stages(step.times)) total_s += stage.seconds;
    events.push_back({{"name", "step"},
                      {"ph", "X"},
                      {"pid", 1},
                      {"tid", 1},
                      {"ts", at_s * kMicro},
                      {"dur", total_s * kMicro},
                      {"args",
                       {{"rows", step.rows},
                        {"new_tokens", step.new_tokens},
                        {"context_tokens", step.context_tokens},
                        {"decode_tokens", step.decode_tokens},
                        {"passes", step.passes}}}});
    for (const NamedTime& stage : stages(step.times)) {
      if (stage.seconds > 0.0) {
        events.push_back({{"name", stage.name},
                          {"ph", "X"},
                          {"pid", 1},
                          {"tid", 1},
                          {"ts", at_s * kMicro},
                          {"dur", stage.seconds * kMicro}});
      }
      at_s += stage.seconds;
    }
  }
  const Json timeline = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return timeline.dump() + "\n";
}

}  // namespace mlaprefill
