// Any bytes as a config.json: an error, or a model within the library's limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/models/model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto model = mlaprefill::parse_model_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (model.ok() && !mlaprefill::validate(model.value().dims).ok()) std::abort();
  return 0;
}
