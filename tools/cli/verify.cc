// `mlaprefill verify`: the differential case list on one backend, against the fp64 oracle.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common.h"
#include "core/error.h"
#include "io/file.h"
#include "verify/cases.h"

namespace mlaprefill::cli {
namespace {

struct VerifyArgs {
  BackendChoice backend;
  std::string filter;
};

// Worst error as a share of what is allowed.
std::string share(const verify::Deviation& deviation) {
  return deviation.bound > 0.0 ? fmt::format("{:.2f}", deviation.ratio()) : std::string("exact");
}

void show_progress(size_t done, size_t total, const std::string& name) {
  if (::isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\x1b[K{}/{} {}", done, total, name);
  if (done == total) fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

int verify_backend(const VerifyArgs& args) {
  const auto backend = args.backend.open();
  if (!backend.ok()) return report(backend.status());
  const std::vector<verify::Case> cases = verify::differential_cases(args.filter);
  if (cases.empty()) {
    return report(invalid("--filter: must match a case name, got {}", quote(args.filter)));
  }
  fmt::print("{}: {}\n", backend.value()->name(), backend.value()->description());
  fmt::print("worst error as a share of the tolerance:\n{:>8} {:>8}  case\n", "out", "lse");
  size_t mismatches = 0;
  size_t unsupported = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    show_progress(i, cases.size(), cases[i].name);
    const verify::Report result = cases[i].prepare()(*backend.value());
    show_progress(i + 1, cases.size(), cases[i].name);
    if (!result.unsupported.empty()) {
      ++unsupported;
      fmt::print("{:>17}  {}: {}\n", "not supported", cases[i].name, result.unsupported);
      continue;
    }
    fmt::print("{:>8} {:>8}  {}\n", share(result.worst.out), share(result.worst.lse), cases[i].name);
    if (result.ok()) continue;
    ++mismatches;
    fmt::print("{:>17}  {}\n", "MISMATCH", result.worst.failure);
  }
  fmt::print("{} cases: {} within tolerance, {} mismatches, {} not supported\n", cases.size(),
             cases.size() - mismatches - unsupported, mismatches, unsupported);
  return mismatches > 0 ? kMismatch : kDone;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_status) {
  const auto args = std::make_shared<VerifyArgs>();
  CLI::App* command =
      add_command(app, exit_status, "verify", "Run the differential cases against the fp64 oracle",
                  [args] { return verify_backend(*args); });
  args->backend.add_to(*command);
  command->add_option("--filter", args->filter, "Only cases whose name contains this text");
}

}  // namespace mlaprefill::cli
