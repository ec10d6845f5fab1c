// `mlaprefill info`: version, backends, and what each would run on here.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "common.h"
#include "mlaprefill/version.h"

namespace mlaprefill::cli {
namespace {

// Describes one backend; an available one that does not open with these options is an error.
int print_backend(const BackendInfo& info, const BackendOptions& options) {
  fmt::print("backend {}: {}\n", info.name, info.available ? "available" : "not available");
  for (const std::string& reason : info.reasons) fmt::print("  {}\n", reason);
  if (!info.available) return kDone;
  const auto backend = open_backend(info.name, options);
  if (!backend.ok()) return report(backend.status());
  fmt::print("  {}\n", backend.value()->description());
  return kDone;
}

}  // namespace

void add_info(CLI::App& app, int& exit_status) {
  const auto options = std::make_shared<BackendOptions>();
  const auto print = [options] {
    fmt::print("mlaprefill {}\n", version());
    int status = kDone;
    for (const BackendInfo& info : list_backends()) {
      status = std::max(status, print_backend(info, *options));
    }
    return status;
  };
  add_cpu_options(
      *add_command(app, exit_status, "info", "Show version, backends and instruction sets", print), *options);
}

}  // namespace mlaprefill::cli
