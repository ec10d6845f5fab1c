// Version of the library.
#pragma once

#include <string_view>

namespace mlaprefill {

/// "major.minor.patch".
std::string_view version();

}  // namespace mlaprefill
