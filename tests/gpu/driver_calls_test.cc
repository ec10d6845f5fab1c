// Counts the driver calls of 61 layers x 20 steps: one host-to-device copy a step, no waiting, no allocation
// on the device, nor on the host once a step is uploaded.
#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>

#include "gpu/device_fixture.h"
#include "support/allocation_count.h"

namespace mlaprefill::sm90 {
namespace {

/// Counts the driver API calls of the whole process between start() and stop().
class DriverCallCounter {
 public:
  DriverCallCounter() {
    library_ = dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    subscribe_ = reinterpret_cast<decltype(subscribe_)>(dlsym(library_, "cuptiSubscribe"));
    enable_ = reinterpret_cast<decltype(enable_)>(dlsym(library_, "cuptiEnableDomain"));
    unsubscribe_ = reinterpret_cast<decltype(unsubscribe_)>(dlsym(library_, "cuptiUnsubscribe"));
  }
  bool available() const { return subscribe_ != nullptr && enable_ != nullptr && unsubscribe_ != nullptr; }

  bool start() {
    return subscribe_(&subscriber_, reinterpret_cast<CUpti_CallbackFunc>(&on_call), this) == CUPTI_SUCCESS &&
           enable_(1, subscriber_, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS;
  }
  std::map<std::string, int> stop() {
    unsubscribe_(subscriber_);
    return std::move(calls_);
  }

 private:
  static void CUPTIAPI on_call(void* self, CUpti_CallbackDomain, CUpti_CallbackId,
                               const CUpti_CallbackData* data) {
    if (data->callbackSite == CUPTI_API_ENTER) {
      ++static_cast<DriverCallCounter*>(self)->calls_[data->functionName];
    }
  }

  void* library_ = nullptr;
  decltype(&cuptiSubscribe) subscribe_ = nullptr;
  decltype(&cuptiEnableDomain) enable_ = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe_ = nullptr;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::map<std::string, int> calls_;
};

int count_matching(const std::map<std::string, int>& calls, std::initializer_list<std::string_view> parts) {
  int count = 0;
  for (const auto& [name, times] : calls) {
    const bool matches = std::any_of(parts.begin(), parts.end(), [&name = name](std::string_view part) {
      return name.find(part) != std::string::npos;
    });
    if (matches) count += times;
  }
  return count;
}

class DriverCalls : public DeviceTest {};

TEST_F(DriverCalls, OneCopyAStepAndNothingThatWaits) {
  constexpr int kLayers = 61;
  constexpr int kSteps = 20;
  DriverCallCounter counter;
  if (!counter.available()) GTEST_SKIP() << "libcupti.so.13 is needed to count driver calls";

  const MlaDims dims = deepseek_dims(16);
  std::vector<Plan> plans;
  int passes = 0;
  int64_t rows = 0;
  int64_t workspace_bytes = 0;
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch({{100 + step, 2000}, {0, 40}, {1, 17 * step}, {64, 0}}, 16, 400, 3);
    PlanOptions options;
    options.workspace_tokens = 2048;
    auto plan = make_plan(dims, batch.ragged(), options, backend->device_properties());
    ASSERT_STATUS_OK(plan.status());
    rows = std::max(rows, plan->num_query_rows);
    workspace_bytes = std::max(workspace_bytes, plan->workspace.total_bytes);
    passes += static_cast<int>(plan->passes.size());
    plans.push_back(std::move(plan).value());
  }
  DeviceLayer layer(*backend, dims, rows, 16, 400, workspace_bytes);
  ASSERT_STATUS_OK(layer.status());
  const Stream stream;
  int64_t host_allocations = 0;
  const auto run_step = [&](const Plan& plan) -> Status {
    if (Status status = backend->upload(plan, layer.workspace(), stream.handle()); !status.ok())
      return status;
    const int64_t before = allocation_count();
    for (int i = 0; i < kLayers; ++i) {
      Status status = layer.layer().run(plan, layer.tensors(plan.num_query_rows), layer.workspace(),
                                        LayerPath::kAuto, stream.handle());
      if (!status.ok()) return status;
    }
    host_allocations += allocation_count() - before;
    return {};
  };
  ASSERT_STATUS_OK(run_step(plans.front()));  // loads the kernels
  host_allocations = 0;
  ASSERT_STATUS_OK(run_step(plans.back()));
  EXPECT_EQ(host_allocations, 0);  // counted here because the driver call counter allocates too
  ASSERT_EQ(cudaStreamSynchronize(stream.cuda()), cudaSuccess);

  ASSERT_TRUE(counter.start());
  Status status;
  for (const Plan& plan : plans) {
    if (status.ok()) status = run_step(plan);
  }
  const std::map<std::string, int> calls = counter.stop();
  ASSERT_STATUS_OK(status);
  for (const auto& [name, times] : calls) fmt::print("{:6} {}\n", times, name);

  EXPECT_EQ(count_matching(calls, {"cuMemcpy"}), kSteps);
  EXPECT_EQ(count_matching(calls, {"cuMemcpyHtoDAsync"}), kSteps);
  EXPECT_EQ(count_matching(calls, {"Synchronize", "cuStreamWait"}), 0);
  EXPECT_EQ(count_matching(calls, {"cuMemAlloc", "cuMemHostAlloc", "cuMemFree", "cuMemHostRegister",
                                   "cuMemCreate", "cuArray", "cuMemset"}),
            0);
  EXPECT_EQ(count_matching(calls, {"cuLaunchKernel"}), 3 * kLayers * passes);
}

}  // namespace
}  // namespace mlaprefill::sm90
