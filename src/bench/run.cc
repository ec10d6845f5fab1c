#include "bench/run.h"

#include <algorithm>
#include <thread>

#include "core/error.h"

namespace mlaprefill::bench {
namespace {

Result<std::vector<Shape>> select(const std::vector<std::string>& names) {
  std::vector<Shape> selected;
  if (names.empty()) {
    std::copy_if(shapes().begin(), shapes().end(), std::back_inserter(selected),
                 [](const Shape& shape) { return shape.quick; });
  }
  for (const std::string& name : names) {
    const auto found = std::find_if(shapes().begin(), shapes().end(),
                                    [&name](const Shape& shape) { return shape.name == name; });
    if (found == shapes().end())
      return invalid("--shape: must be a name `bench --list` prints, got {}", name);
    selected.push_back(*found);
  }
  return selected;
}

Result<ShapeResult> measure(const Shape& shape, const RunOptions& options, Report& report,
                            const std::function<void(int)>& progress) {
  auto subject = Case::create(shape, options.subject);
  if (!subject.ok()) return subject.status();
  report.backend_description = subject.value()->backend().description();
  report.isa = subject.value()->backend().isa();
  std::vector<Case*> cases{subject.value().get()};
  std::unique_ptr<Case> other;
  if (options.against) {
    auto against = Case::create(shape, *options.against);
    if (!against.ok()) return against.status();
    other = std::move(against).value();
    cases.push_back(other.get());
  }
  auto timings = time_interleaved(cases, options.rounds, options.min_seconds, progress);
  if (!timings.ok()) return timings.status();
  ShapeResult result{shape, cases[0]->work(), cases[0]->plan_seconds(), timings.value()[0], {}, {}, {}};
  if (other) {
    result.against = timings.value()[1];
    result.ratio = paired_ratio(*result.against, result.timing);
    result.verdict = verdict(*result.ratio, options.verdict_margin);
  }
  return result;
}

}  // namespace

Result<Report> run(const RunOptions& options, const Progress& progress) {
  if (options.against && options.rounds < 6) {
    return invalid("--rounds: must be >= 6 for a paired comparison, got {}", options.rounds);
  }
  auto selected = select(options.shape_names);
  if (!selected.ok()) return selected.status();

  Report report;
  report.options = options;
  const bool cpu = options.subject.backend == "cpu";
  if (cpu) {
    const int32_t asked = options.subject.backend_options.num_threads;
    report.peaks = measure_peaks(asked > 0 ? asked : static_cast<int>(std::thread::hardware_concurrency()));
  }
  const int total = options.rounds * static_cast<int>(selected.value().size());
  int done = 0;
  for (const Shape& shape : selected.value()) {
    auto result = measure(shape, options, report, [&](int) { progress(shape.name, ++done, total); });
    if (!result.ok()) return result.status();
    report.results.push_back(std::move(result).value());
  }
  return report;
}

}  // namespace mlaprefill::bench
