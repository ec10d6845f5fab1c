// Whatever a safetensors file holds: opening it, reading its tensors, and running it as a case either work or
// give an error that names the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "io/attend_case.h"
#include "io/attend_run.h"
#include "io/safetensors_file.h"
#include "mlaprefill/backend.h"

namespace mlaprefill {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// A file in memory, rewritten for every input, so that the real reader is under test.
std::string file_with(const uint8_t* data, size_t size) {
  static const int descriptor = ::memfd_create("case", MFD_CLOEXEC);
  require(::ftruncate(descriptor, 0) == 0);
  require(::pwrite(descriptor, data, size, 0) == static_cast<ssize_t>(size));
  return "/proc/self/fd/" + std::to_string(descriptor);
}

void require_named(const Status& status, const std::string& path) {
  require(status.ok() || status.message().starts_with(path + ": "));
}

void read_every_tensor(const SafetensorsFile& file, size_t file_size) {
  size_t total = 0;
  for (const auto& [name, entry] : file.header().tensors) {
    const auto tensor = file.read(name);
    require_named(tensor.status(), file.path());
    if (tensor.ok()) require(tensor->memory.size_bytes() == entry.size_bytes);
    total += static_cast<size_t>(entry.size_bytes);
  }
  require(total <= file_size);
}

void run_as_case(const SafetensorsFile& file) {
  static const std::unique_ptr<Backend> backend = open_backend("reference").value();
  const auto attend_case =
      load_attend_case(file, {.softmax_scale = 0.1, .causal = {}, .qk_nope_head_dim = {}});
  require_named(attend_case.status(), file.path());
  if (!attend_case.ok()) return;
  AttendOptions options;
  options.workspace_tokens = 64;
  for (const bool composed : {false, true}) {
    options.composed = composed;
    const auto output = run_attend_case(attend_case.value(), *backend, options);
    require(output.ok() || !output.status().message().empty());
  }
}

}  // namespace
}  // namespace mlaprefill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace mlaprefill;
  const std::string path = file_with(data, size);
  const auto file = SafetensorsFile::open(path);
  require_named(file.status(), path);
  if (!file.ok()) return 0;
  read_every_tensor(file.value(), size);
  run_as_case(file.value());
  return 0;
}
