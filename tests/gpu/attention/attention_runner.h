// Runs the Hopper attention kernel without the rest of the backend. For tests and benchmarks.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>

#include "backend/sm90/attention_call.h"
#include "backend/sm90/metadata.h"

namespace mlaprefill::sm90 {

/// An attention call whose schedule is on the device: may be launched any number of times.
class AttentionRunner {
 public:
  /// `args` has neither plan nor workspace: the runner owns the schedule of its spans, or the one given
  /// instead.
  static Result<std::unique_ptr<AttentionRunner>> create(const AttentionArgs& args,
                                                         std::optional<Schedule> schedule = std::nullopt);
  ~AttentionRunner() { cudaFree(workspace_); }
  AttentionRunner(const AttentionRunner&) = delete;
  AttentionRunner& operator=(const AttentionRunner&) = delete;

  cudaError_t launch(cudaStream_t stream) const;
  /// Splits of keys in the schedule.
  int64_t num_splits() const { return num_splits_; }

 private:
  AttentionRunner() = default;

  AttentionCall call_;
  void* workspace_ = nullptr;
  int32_t max_clusters_ = 0;
  int64_t num_splits_ = 0;
};

}  // namespace mlaprefill::sm90
