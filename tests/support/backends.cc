#include "support/backends.h"

#include <utility>

namespace mlaprefill {
namespace {

void add(std::vector<NamedBackend>& backends, const std::string& name, const std::string& shown,
         const BackendOptions& options) {
  auto opened = open_backend(name, options);
  if (opened.ok()) backends.push_back({shown, std::move(opened).value()});
}

}  // namespace

const std::vector<NamedBackend>& test_backends() {
  static const std::vector<NamedBackend> backends = [] {
    std::vector<NamedBackend> found;
    add(found, "reference", "reference", {});
    for (const char* isa : {"amx_bf16", "avx512_bf16", "avx512", "avx2", "scalar"}) {
      add(found, "cpu", std::string("cpu/") + isa, {.isa = isa});
    }
    add(found, "sm90", "sm90", {});
    return found;
  }();
  return backends;
}

}  // namespace mlaprefill
