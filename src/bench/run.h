// The benchmark run behind `mlaprefill bench`: shapes in, one report out.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/case.h"
#include "bench/harness.h"
#include "bench/peak.h"

namespace mlaprefill::bench {

struct RunOptions {
  CaseOptions subject;
  std::optional<CaseOptions>
      against;  ///< measured in turn with `subject`; ratios say how the subject compares
  std::vector<std::string> shape_names;  ///< empty: every quick shape
  int rounds = 9;
  double min_seconds = 0.02;  ///< length of one sample
  double verdict_margin = 0.02;
};

struct ShapeResult {
  Shape shape;
  Work work;
  double plan_seconds = 0;
  Timing timing;
  std::optional<Timing> against;
  std::optional<PairedRatio> ratio;  ///< seconds of `against` over seconds of the subject
  std::string verdict;
};

struct Report {
  RunOptions options;
  std::string backend_description;
  std::string isa;  ///< level the CPU backend runs at; empty for other backends
  std::vector<Peak> peaks;
  std::vector<ShapeResult> results;
};

/// Told before each round; `done` of `total` rounds over all shapes.
using Progress = std::function<void(const std::string& shape, int done, int total)>;

Result<Report> run(const RunOptions& options, const Progress& progress);

/// A table for people.
std::string to_text(const Report& report);
/// The "mlaprefill.bench/1" result file's content.
nlohmann::ordered_json to_json(const Report& report);

}  // namespace mlaprefill::bench
