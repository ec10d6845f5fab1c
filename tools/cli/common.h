// What the commands share: exit statuses, error output, backend options.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "io/file.h"
#include "mlaprefill/backend.h"
#include "mlaprefill/status.h"

namespace mlaprefill::cli {

/// Exit statuses, documented in docs/cli.md.
enum ExitStatus : int {
  kDone = 0,
  kMismatch = 1,  ///< verify, replay: a result is outside its tolerance
  kBadInput = 2,  ///< a flag or a file; outputs are untouched
  kFailed = 3,    ///< out of memory, a device error, a defect
};

/// Prints `mlaprefill: MESSAGE` to standard error and gives the exit status that belongs to the code.
int report(const Status& status);

/// Adds a command that runs `run` when it was chosen. CLI11 calls it after the whole line has been parsed.
CLI::App* add_command(CLI::App& app, int& exit_status, const std::string& name,
                      const std::string& description, std::function<int()> run);

/// A decimal integer in low .. high, for the option `name`. CLI11's own conversion wraps and takes octal.
template <typename Integer>
Integer parse_integer(const std::string& name, const std::string& text, Integer low, Integer high) {
  Integer value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    throw CLI::ValidationError(
        fmt::format("{}: must be an integer in {} .. {}, got {}", name, low, high, quote(text)));
  }
  return value;
}

/// Adds an option for a decimal integer in low .. high, with `value` as the default.
template <typename Integer>
CLI::Option* add_integer(CLI::App& command, const std::string& name, Integer& value, Integer low,
                         Integer high, const std::string& description) {
  const auto parse = [=, &value](const std::string& text) { value = parse_integer(name, text, low, high); };
  return command.add_option_function<std::string>(name, parse, description)
      ->type_name("INT")
      ->default_str(fmt::to_string(value));
}

/// The same without a default.
template <typename Integer>
CLI::Option* add_integer(CLI::App& command, const std::string& name, std::optional<Integer>& value,
                         Integer low, Integer high, const std::string& description) {
  const auto parse = [=, &value](const std::string& text) { value = parse_integer(name, text, low, high); };
  return command.add_option_function<std::string>(name, parse, description)->type_name("INT");
}

/// --isa and --threads.
void add_cpu_options(CLI::App& command, BackendOptions& options);

/// --backend, and the CPU options.
struct BackendChoice {
  std::string name = "cpu";
  BackendOptions options;

  void add_to(CLI::App& command);
  Result<std::unique_ptr<Backend>> open() const { return open_backend(name, options); }
};

/// One function a command: adds it to the application.
void add_attend(CLI::App& app, int& exit_status);
void add_bench(CLI::App& app, int& exit_status);
void add_info(CLI::App& app, int& exit_status);
void add_plan(CLI::App& app, int& exit_status);
void add_replay(CLI::App& app, int& exit_status);
void add_verify(CLI::App& app, int& exit_status);

}  // namespace mlaprefill::cli
