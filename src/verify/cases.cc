#include "verify/cases.h"

#include <iterator>
#include <utility>

namespace mlaprefill::verify {

std::vector<Case> differential_cases() {
  std::vector<Case> cases;
  for (auto& part : {attention_cases(), layer_cases(), merge_cases(), append_cases()}) {
    cases.insert(cases.end(), part.begin(), part.end());
  }
  return cases;
}

std::vector<Case> differential_cases(std::string_view filter) {
  std::vector<Case> cases = differential_cases();
  std::erase_if(cases, [filter](const Case& one) { return one.name.find(filter) == std::string::npos; });
  return cases;
}

}  // namespace mlaprefill::verify
