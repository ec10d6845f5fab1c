// `mlaprefill bench`: named shapes, useful rates, share of the measured peak, paired comparison.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/run.h"
#include "common.h"
#include "core/error.h"
#include "io/file.h"
#include "io/json_result.h"

namespace mlaprefill::cli {
namespace {

struct BenchFlags {
  BackendChoice backend;
  std::vector<std::string> shapes;
  std::vector<std::string> against;
  std::string dtype = "bf16";
  int32_t heads = 16;
  int64_t workspace_tokens = 65536;
  bool invariant = false;
  bool composed = false;
  bool list = false;
  int rounds = 9;
  std::string json_path;
};

const std::map<std::string, DType> kDTypes = {
    {"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}};

bench::CaseOptions case_options(const BenchFlags& flags) {
  bench::CaseOptions options;
  options.backend = flags.backend.name;
  options.backend_options = flags.backend.options;
  options.dtype = kDTypes.at(flags.dtype);
  options.dims = {flags.heads, 512, 128, 64, 128, 1.0 / std::sqrt(192.0)};
  options.plan.workspace_tokens = flags.workspace_tokens;
  options.plan.working_dtype = options.dtype;
  options.plan.invariant = flags.invariant;
  options.path = flags.composed ? LayerPath::kComposed : LayerPath::kAuto;
  return options;
}

// The subject's configuration with the KEY=VALUE changes of --against.
Result<bench::CaseOptions> changed(bench::CaseOptions options, const std::vector<std::string>& changes) {
  for (const std::string& change : changes) {
    const size_t equals = change.find('=');
    const std::string key = change.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : change.substr(equals + 1);
    const bool yes = value == "yes";
    if (key == "isa" && !value.empty()) {
      options.backend_options.isa = value;
    } else if (key == "backend" && !value.empty()) {
      options.backend = value;
    } else if (key == "threads" && !value.empty() &&
               value.find_first_not_of("0123456789") == std::string::npos && value.size() < 5) {
      options.backend_options.num_threads = std::stoi(value);
    } else if (key == "composed" && (yes || value == "no")) {
      options.path = yes ? LayerPath::kComposed : LayerPath::kAuto;
    } else if (key == "invariant" && (yes || value == "no")) {
      options.plan.invariant = yes;
    } else {
      return invalid(
          "--against: must be isa=LEVEL, backend=NAME, threads=N, composed=yes|no or invariant=yes|no, got "
          "{}",
          quote(change));
    }
  }
  return options;
}

void print_list() {
  for (const bench::Shape& shape : bench::shapes()) {
    const bool layer = shape.operation == bench::Operation::kLayer;
    fmt::print("{:<18} {:<10} {:<6} {}\n", shape.name, layer ? "layer" : "attention",
               shape.quick ? "quick" : "", shape.about);
  }
}

int run_bench(const BenchFlags& flags) {
  if (flags.list) {
    print_list();
    return kDone;
  }
  bench::RunOptions options;
  options.subject = case_options(flags);
  options.shape_names = flags.shapes;
  options.rounds = flags.rounds;
  if (!flags.against.empty()) {
    auto against = changed(options.subject, flags.against);
    if (!against.ok()) return report(against.status());
    options.against = std::move(against).value();
  }
  const bool terminal = isatty(STDERR_FILENO) != 0;
  auto result = bench::run(options, [terminal](const std::string& shape, int done, int total) {
    if (terminal) fmt::print(stderr, "\r\x1b[Kbench: {} of {} rounds, {}", done, total, shape);
  });
  if (terminal) fmt::print(stderr, "\r\x1b[K");
  if (!result.ok()) return report(result.status());
  fmt::print("{}", bench::to_text(result.value()));
  if (flags.json_path.empty()) return kDone;
  const Status written = write_json_result(flags.json_path, bench::to_json(result.value()));
  return written.ok() ? kDone : report(written);
}

}  // namespace

void add_bench(CLI::App& app, int& exit_status) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      add_command(app, exit_status, "bench", "Measure named shapes", [flags] { return run_bench(*flags); });
  flags->backend.add_to(*command);
  command->add_flag("--list", flags->list, "List the shapes and stop");
  command->add_option("--shape", flags->shapes,
                      "A shape to measure, may be repeated; default: every quick one");
  command->add_option("--dtype", flags->dtype, "bf16, f16 or f32")
      ->check(CLI::IsMember(kDTypes))
      ->capture_default_str();
  add_integer(*command, "--heads", flags->heads, 1, 256, "Query heads");
  add_integer(*command, "--workspace-tokens", flags->workspace_tokens, int64_t{1}, int64_t{1} << 40,
              "As of `attend`");
  command->add_flag("--invariant", flags->invariant, "As of `attend`");
  command->add_flag("--composed", flags->composed, "As of `attend`");
  add_integer(*command, "--rounds", flags->rounds, 1, 1000,
              "Rounds of each shape; at least 6 with --against");
  command->add_option(
      "--against", flags->against,
      "KEY=VALUE changes that make the second configuration, measured in turn with the first");
  command->add_option("--json", flags->json_path, "Write the results to this file");
}

}  // namespace mlaprefill::cli
