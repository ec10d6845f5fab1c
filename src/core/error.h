// One way to make an error: `where: requirement, got value`.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "mlaprefill/status.h"

namespace mlaprefill {

template <typename... Args>
Status error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

}  // namespace mlaprefill

/// Returns the Status of `expression` from the enclosing function when it is not ok.
#define MLAPREFILL_RETURN_IF_ERROR(expression)                                                             \
  do {                                                                                                     \
    if (auto status_of_expression = (expression); !status_of_expression.ok()) return status_of_expression; \
  } while (false)
