// Runs one named shape once inside measured_call(), for an instruction counter that starts and stops there.
// Usage: instructions SHAPE ISA
#include <fmt/format.h>

#include <cstdio>

#include "bench/case.h"

namespace {

using mlaprefill::bench::Case;

extern "C" __attribute__((noinline)) int measured_call(Case& subject) { return subject.run().ok() ? 0 : 1; }

int run(const char* shape_name, const char* isa) {
  mlaprefill::bench::CaseOptions options;
  options.dims = {2, 512, 128, 64, 128, 0.1};
  options.backend_options = {.num_threads = 1, .isa = isa};
  for (const auto& shape : mlaprefill::bench::shapes()) {
    if (shape.name != shape_name) continue;
    auto subject = Case::create(shape, options);
    if (!subject.ok()) {
      fmt::print(stderr, "{}\n", subject.status().message());
      return 2;
    }
    if (!subject.value()->run().ok()) return 1;
    return measured_call(*subject.value());
  }
  fmt::print(stderr, "shape: must be a name that `mlaprefill bench --list` prints, got {}\n", shape_name);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: instructions SHAPE ISA\n");
    return 2;
  }
  return run(argv[1], argv[2]);
}
