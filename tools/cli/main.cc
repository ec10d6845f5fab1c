// The command line tool `mlaprefill`: parsing, and exit statuses for whatever escapes a command.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "common.h"
#include "core/error.h"
#include "io/file.h"
#include "mlaprefill/version.h"

namespace mlaprefill::cli {
namespace {

// CLI11 itself only says that a command is missing.
Status check_command(const CLI::App& app, std::string_view name) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return {};
    names.push_back(command->get_name());
  }
  return invalid("command: must be one of {}, got {}", fmt::join(names, ", "), quote(name));
}

int run(int argc, char** argv) {
  CLI::App app("Prefill attention for MLA models.", "mlaprefill");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& parse_error) {
    return fmt::format("mlaprefill: {}\nRun with --help for more information.\n", parse_error.what());
  });
  int exit_status = kDone;
  add_attend(app, exit_status);
  add_bench(app, exit_status);
  add_info(app, exit_status);
  add_plan(app, exit_status);
  add_replay(app, exit_status);
  add_verify(app, exit_status);
  if (argc > 1 && argv[1][0] != '-') {
    if (const Status status = check_command(app, argv[1]); !status.ok()) return report(status);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& parse_error) {
    return app.exit(parse_error) == 0 ? kDone : kBadInput;
  }
  if (std::fflush(stdout) != 0) {
    return report(Status(StatusCode::kIoError, "standard output: must be writable, got a write error"));
  }
  return exit_status;
}

}  // namespace
}  // namespace mlaprefill::cli

int main(int argc, char** argv) {
  using namespace mlaprefill::cli;
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "mlaprefill: memory: must suffice for this run, got an allocation failure\n");
  } catch (const std::exception& exception) {
    fmt::print(stderr, "mlaprefill: {}\n", exception.what());
  }
  return kFailed;
}
