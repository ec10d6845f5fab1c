#include "io/json_result.h"

#include <fmt/format.h>

#include "core/error.h"
#include "io/file.h"
#include "mlaprefill/version.h"

namespace mlaprefill {

nlohmann::ordered_json new_json_result(std::string_view name, int schema_version) {
  nlohmann::ordered_json result;
  result["schema"] = fmt::format("mlaprefill.{}/{}", name, schema_version);
  result["mlaprefill_version"] = std::string(version());
  return result;
}

Status write_json_result(const std::string& path, const nlohmann::ordered_json& result) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  const std::string text =
      result.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  MLAPREFILL_RETURN_IF_ERROR(file->write(text));
  return file->commit();
}

}  // namespace mlaprefill
