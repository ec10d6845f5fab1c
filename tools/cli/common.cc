#include "common.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace mlaprefill::cli {

int report(const Status& status) {
  fmt::print(stderr, "mlaprefill: {}\n", status.message());
  const bool own_fault = status.code() == StatusCode::kDeviceError || status.code() == StatusCode::kInternal;
  return own_fault ? kFailed : kBadInput;
}

CLI::App* add_command(CLI::App& app, int& exit_status, const std::string& name,
                      const std::string& description, std::function<int()> run) {
  CLI::App* command = app.add_subcommand(name, description);
  command->callback([run = std::move(run), &exit_status] { exit_status = run(); });
  return command;
}

void add_cpu_options(CLI::App& command, BackendOptions& options) {
  command
      .add_option("--isa", options.isa,
                  "CPU instruction set level: auto, amx_bf16, avx512_bf16, avx512, avx2, scalar")
      ->capture_default_str();
  add_integer(command, "--threads", options.num_threads, 0, 1 << 16,
              "CPU worker threads, 0: all this process may use");
}

void BackendChoice::add_to(CLI::App& command) {
  command.add_option("--backend", name, "Backend: cpu, reference or sm90")->capture_default_str();
  add_cpu_options(command, options);
}

}  // namespace mlaprefill::cli
