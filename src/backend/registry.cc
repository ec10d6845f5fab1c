// The backends this build knows.
#include <fmt/ranges.h>

#include <array>

#include "backend/internal.h"
#include "core/error.h"

namespace mlaprefill {
namespace {

struct Entry {
  std::string_view name;
  Result<std::unique_ptr<Backend>> (*open)(const BackendOptions& options);
  BackendInfo (*info)();
};

// A host backend can be used wherever it opens.
template <auto kOpen>
BackendInfo host_info(std::string_view name) {
  BackendInfo info{.name = std::string(name), .available = false, .reasons = {}};
  const auto opened = kOpen({});
  info.available = opened.ok();
  if (!opened.ok()) info.reasons.push_back(opened.status().message());
  return info;
}

const std::array<Entry, 3> kEntries{{
    {"cpu", open_cpu_backend, [] { return host_info<open_cpu_backend>("cpu"); }},
    {"reference", open_reference_backend, [] { return host_info<open_reference_backend>("reference"); }},
    {"sm90", open_sm90_backend, sm90_backend_info},
}};

}  // namespace

std::vector<BackendInfo> list_backends() {
  std::vector<BackendInfo> infos;
  for (const Entry& entry : kEntries) infos.push_back(entry.info());
  return infos;
}

Result<std::unique_ptr<Backend>> open_backend(std::string_view name, const BackendOptions& options) {
  std::vector<std::string_view> names;
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.open(options);
    names.push_back(entry.name);
  }
  return invalid("backend: must be one of {}, got \"{}\"", fmt::join(names, ", "), name);
}

}  // namespace mlaprefill
