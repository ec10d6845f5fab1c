// JSON result files: every one names its schema and the version of the program that wrote it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "mlaprefill/status.h"

namespace mlaprefill {

/// {"schema": "mlaprefill.NAME/VERSION", "mlaprefill_version": "..."}; keys keep the order they are added in.
nlohmann::ordered_json new_json_result(std::string_view name, int schema_version);

/// Writes the result atomically, indented by two spaces. Text that is not UTF-8 is replaced, not refused.
Status write_json_result(const std::string& path, const nlohmann::ordered_json& result);

}  // namespace mlaprefill
