#include "io/json_result.h"

#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "mlaprefill/version.h"

namespace mlaprefill {
namespace {

TEST(JsonResult, NamesSchemaAndVersionFirst) {
  const TemporaryFolder folder;
  auto result = new_json_result("verify", 1);
  result["trace"] = "bad \xff text";
  ASSERT_TRUE(write_json_result(folder.path("result.json"), result).ok());
  EXPECT_EQ(folder.read("result.json"),
            "{\n  \"schema\": \"mlaprefill.verify/1\",\n  \"mlaprefill_version\": \"" +
                std::string(version()) + "\",\n  \"trace\": \"bad \xef\xbf\xbd text\"\n}\n");
}

}  // namespace
}  // namespace mlaprefill
