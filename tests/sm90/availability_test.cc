#include "backend/sm90/availability.h"

#include <gtest/gtest.h>

#include "backend/internal.h"

namespace mlaprefill::sm90 {
namespace {

DeviceFacts hopper() { return {.device_count = 1, .capability_major = 9, .capability_minor = 0}; }

TEST(Sm90Availability, HopperAlone) {
  struct Row {
    int32_t major, minor;
    bool available;
  };
  const Row rows[] = {{7, 0, false},  {7, 5, false},  {8, 0, false},  {8, 6, false},  {8, 7, false},
                      {8, 9, false},  {9, 0, true},   {10, 0, false}, {10, 1, false}, {10, 3, false},
                      {11, 0, false}, {12, 0, false}, {12, 1, false}};
  for (const Row& row : rows) {
    DeviceFacts facts = hopper();
    facts.capability_major = row.major;
    facts.capability_minor = row.minor;
    const std::vector<std::string> reasons = unavailable_reasons(facts);
    EXPECT_EQ(reasons.empty(), row.available) << row.major << "." << row.minor;
    if (!row.available) {
      EXPECT_EQ(reasons.front(), "device 0: compute capability must be 9.0, got " +
                                     std::to_string(row.major) + "." + std::to_string(row.minor));
    }
  }
}

TEST(Sm90Availability, MostBasicReasonFirst) {
  DeviceFacts facts = hopper();
  facts.projection_error = "libcublasLt.so.13: no such file";
  EXPECT_EQ(unavailable_reasons(facts).front(),
            "cublasLt: version 13 must load, got \"libcublasLt.so.13: no such file\"");
  facts.device = 1;
  EXPECT_EQ(unavailable_reasons(facts).front(), "device: must be 0..0, got 1");
  facts.device_count = 0;
  EXPECT_EQ(unavailable_reasons(facts).front(), "device: at least one CUDA device is needed, got none");
  facts.driver_error = "no CUDA-capable device is detected";
  EXPECT_EQ(unavailable_reasons(facts).front(),
            "driver: must list CUDA devices, got \"no CUDA-capable device is detected\"");
  facts.built = false;
  EXPECT_EQ(unavailable_reasons(facts).front(), "build: must have MLAPREFILL_CUDA=ON, got OFF");
}

TEST(Sm90Availability, OpeningAndListingAgree) {
  const BackendInfo info = sm90_backend_info();
  EXPECT_EQ(info.name, "sm90");
  const auto backend = open_sm90_backend({});
  EXPECT_EQ(backend.ok(), info.available);
  if (!info.available) {
    EXPECT_EQ(backend.status().code(), StatusCode::kUnavailable);
    EXPECT_NE(backend.status().message().find(info.reasons.front()), std::string::npos);
  }
}

}  // namespace
}  // namespace mlaprefill::sm90
