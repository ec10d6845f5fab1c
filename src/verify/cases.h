// The differential case list: what every backend is held to, by the tests and by `mlaprefill verify`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "verify/report.h"

namespace mlaprefill::verify {

/// Inputs and the oracle's answer, made once; run() may be called for any number of backends.
using PreparedCase = std::function<Report(const Backend& backend)>;

struct Case {
  std::string name;  ///< e.g. "layer/128-64-128-512/h5/bf16/cache-f8_e4m3"
  std::function<PreparedCase()> prepare;
};

/// Every case, in a fixed order.
std::vector<Case> differential_cases();

/// Those whose name contains `filter`.
std::vector<Case> differential_cases(std::string_view filter);

// The parts of the list.
std::vector<Case> attention_cases();
std::vector<Case> layer_cases();
std::vector<Case> merge_cases();
std::vector<Case> append_cases();

}  // namespace mlaprefill::verify
