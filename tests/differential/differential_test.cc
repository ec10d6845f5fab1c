// Every backend and ISA level of this machine against the oracle, on the shared case list.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <set>

#include "support/backends.h"
#include "verify/cases.h"

namespace mlaprefill {
namespace {

class Differential : public testing::TestWithParam<verify::Case> {};

TEST_P(Differential, EveryBackendIsWithinTheTolerance) {
  const verify::PreparedCase run = GetParam().prepare();
  for (const NamedBackend& named : test_backends()) {
    SCOPED_TRACE(named.name);
    const verify::Report report = run(*named.backend);
    EXPECT_EQ(report.worst.failure, "");
    if (named.name != "sm90") {
      EXPECT_EQ(report.unsupported, "");
    }
    RecordProperty("worst_" + named.name,
                   fmt::format("out {:.3g} of {:.3g}, lse {:.3g} of {:.3g}", report.worst.out.error,
                               report.worst.out.bound, report.worst.lse.error, report.worst.lse.bound));
  }
}

std::string test_name(const testing::TestParamInfo<verify::Case>& info) {
  std::string name = info.param.name;
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, Differential, testing::ValuesIn(verify::differential_cases()), test_name);

TEST(DifferentialCases, HaveDistinctNamesAndAFilter) {
  std::set<std::string> names;
  for (const verify::Case& one : verify::differential_cases()) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
  }
  EXPECT_LT(verify::differential_cases("merge/").size(), names.size());
  EXPECT_FALSE(verify::differential_cases("merge/").empty());
  EXPECT_TRUE(verify::differential_cases("no such case").empty());
}

}  // namespace

namespace verify {
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
}  // namespace verify
}  // namespace mlaprefill
