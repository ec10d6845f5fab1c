#include "replay/report.h"

namespace mlaprefill {

int64_t ReplayReport::prefill_tokens() const {
  int64_t tokens = 0;
  for (const StepRecord& step : prefill_steps) tokens += step.new_tokens;
  return tokens;
}

double ReplayReport::attention_flop() const {
  double flop = 0.0;
  for (const StepRecord& step : prefill_steps) flop += step.attention_flop;
  return flop * static_cast<double>(options.layers);
}

double ReplayReport::expand_flop() const {
  double flop = 0.0;
  for (const StepRecord& step : prefill_steps) flop += step.expand_flop;
  return flop * static_cast<double>(options.layers);
}

std::array<NamedTime, 7> stages(const StageTimes& times) {
  return {{{"schedule", times.schedule_s},
           {"plan", times.plan_s},
           {"compare modes", times.compare_s},
           {"make inputs", times.inputs_s},
           {"append", times.append_s},
           {"layer", times.layer_s},
           {"check", times.check_s}}};
}

}  // namespace mlaprefill
