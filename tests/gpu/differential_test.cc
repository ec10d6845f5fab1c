// The differential case list, the same one the CPU backends are held to.
#include <fmt/format.h>

#include "gpu/device_fixture.h"
#include "verify/cases.h"

namespace mlaprefill::sm90 {
namespace {

class Differential : public DeviceTest {};

TEST_F(Differential, EveryCaseTheBackendSupports) {
  int ran = 0;
  int refused = 0;
  for (const verify::Case& one : verify::differential_cases()) {
    const verify::Report report = one.prepare()(*backend);
    if (!report.unsupported.empty()) {
      ++refused;
      continue;
    }
    ++ran;
    EXPECT_TRUE(report.ok()) << one.name << ": " << report.worst.failure;
    fmt::print("{}: worst out {:.3f}, lse {:.3f} of the bound\n", one.name, report.worst.out.ratio(),
               report.worst.lse.ratio());
  }
  fmt::print("{} cases ran, {} are not supported by this backend\n", ran, refused);
  EXPECT_GT(ran, 20);
}

TEST(TwoDevices, BackendsOfOneProcessTakeTurns) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
    GTEST_SKIP() << "two GPUs are needed, got " << devices;
  }
  std::vector<std::unique_ptr<Backend>> backends;
  for (int32_t device : {0, 1}) {
    auto opened = open_backend("sm90", {.device = device});
    ASSERT_STATUS_OK(opened.status());
    backends.push_back(std::move(opened).value());
  }
  int ran = 0;
  for (const verify::Case& one : verify::differential_cases()) {
    for (const auto& backend : backends) {
      const verify::Report report = one.prepare()(*backend);
      if (!report.unsupported.empty()) continue;
      ++ran;
      EXPECT_TRUE(report.ok()) << one.name << ": " << report.worst.failure;
    }
  }
  EXPECT_GT(ran, 40);
}

}  // namespace
}  // namespace mlaprefill::sm90
