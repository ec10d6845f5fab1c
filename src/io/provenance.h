// Where a result file comes from: machine, build, commit and command.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace mlaprefill {

/// The command line of this process, arguments quoted where a shell needs it.
std::string command_line();

/// {"command", "commit", "build": {...}, "machine": {...}}.
nlohmann::ordered_json provenance();

}  // namespace mlaprefill
