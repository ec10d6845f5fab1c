// `mlaprefill attend`: attention on the tensors of a safetensors file.
#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>

#include "common.h"
#include "core/error.h"
#include "io/attend_case.h"
#include "io/attend_run.h"
#include "io/file.h"
#include "io/safetensors_file.h"
#include "io/safetensors_writer.h"

namespace mlaprefill::cli {
namespace {

struct AttendArgs {
  std::string case_path;
  std::string output_path;
  std::string mode = "bridge";
  BackendChoice backend;
  CaseOptions case_options;
  AttendOptions options;
};

Status attend(AttendArgs args, const CLI::App& command) {
  const auto mode = parse_plan_mode(args.mode);
  if (!mode.ok()) return Status(mode.status().code(), "--mode: " + mode.status().message());
  args.options.mode = mode.value();
  std::error_code no_such_file;
  if (std::filesystem::equivalent(args.case_path, args.output_path, no_such_file)) {
    return invalid("--output: must be another file than the case, got {}", args.output_path);
  }

  const auto file = SafetensorsFile::open(args.case_path);
  if (!file.ok()) return file.status();
  const auto attend_case = load_attend_case(file.value(), args.case_options);
  if (!attend_case.ok()) return attend_case.status();
  if (std::holds_alternative<PlainCase>(attend_case.value())) {
    for (const char* option : {"--mode", "--workspace-tokens", "--composed"}) {
      if (command.count(option) == 0) continue;
      fmt::print(stderr, "mlaprefill: note: {} does not concern a plain case, which has no plan\n", option);
    }
  }
  const auto backend = args.backend.open();
  if (!backend.ok()) return backend.status();
  auto output_file = OutputFile::create(args.output_path);
  if (!output_file.ok()) return output_file.status();

  const auto output = run_attend_case(attend_case.value(), *backend.value(), args.options);
  if (!output.ok()) {
    return Status(output.status().code(), fmt::format("{}: {}", args.case_path, output.status().message()));
  }
  MLAPREFILL_RETURN_IF_ERROR(write_safetensors(
      output_file.value(), {{"out", output->out.view}, {"lse", output->lse.view}},
      {{"schema", "mlaprefill.attend/1"}, {"backend", std::string(backend.value()->name())}}));
  return output_file->commit();
}

}  // namespace

void add_attend(CLI::App& app, int& exit_status) {
  const auto args = std::make_shared<AttendArgs>();
  const auto command = std::make_shared<CLI::App*>(nullptr);
  *command = add_command(app, exit_status, "attend",
                         "Run one MLA layer, or plain ragged attention, on the tensors of a safetensors file",
                         [args, command] {
                           const Status status = attend(*args, **command);
                           return status.ok() ? kDone : report(status);
                         });
  CLI::App& options = **command;
  options.add_option("case", args->case_path, "Safetensors file with the tensors (docs/cli.md)")
      ->required()
      ->type_name("CASE.safetensors");
  options.add_option("-o,--output", args->output_path, "Safetensors file to write: out and lse")
      ->required()
      ->type_name("OUT.safetensors");
  args->backend.add_to(options);
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  add_integer(options, "--workspace-tokens", args->options.workspace_tokens, int64_t{1}, int64_t{kMax},
              "Most rows of a pass; with a fused layer, of a worker's chunk");
  options.add_option("--mode", args->mode, "Plan mode: bridge, min_continuation, vllm or even_split")
      ->capture_default_str();
  options.add_flag("--invariant", args->options.invariant,
                   "Results bitwise independent of the workspace and of other requests");
  options.add_flag("--strict", args->options.strict, "Refuse requests and passes with inactive rows");
  options.add_flag("--composed", args->options.composed,
                   "Expand and attend over the plan's passes even where the backend has a fused layer");
  options.add_option("--softmax-scale", args->case_options.softmax_scale,
                     "Multiplies q.k; needed here or in the file's __metadata__");
  const auto causal_flag = [&](const char* name, bool causal, const char* description) {
    const auto set = [args, causal](int64_t) { args->case_options.causal = causal; };
    return options.add_flag_function(name, set, description);
  };
  causal_flag("--causal", true, "Bottom-right causal, the default")
      ->excludes(causal_flag("--no-causal", false, "Plain case: every query sees every key of its request"));
  add_integer(options, "--qk-nope-head-dim", args->case_options.qk_nope_head_dim, 0, kMax,
              "Layer case: checked against the tensors' shapes");
}

}  // namespace mlaprefill::cli
