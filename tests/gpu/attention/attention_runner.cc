#include "gpu/attention/attention_runner.h"

#include <algorithm>
#include <vector>

#include "backend/internal.h"
#include "backend/sm90/cuda_status.h"
#include "backend/sm90/kv_splits.h"
#include "core/error.h"
#include "plan/kv_splits.h"

namespace mlaprefill::sm90 {

Result<std::unique_ptr<AttentionRunner>> AttentionRunner::create(const AttentionArgs& args,
                                                                 std::optional<Schedule> schedule) {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  int device = 0;
  int processors = 0;
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "device"));
  MLAPREFILL_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "device"));
  std::unique_ptr<AttentionRunner> runner(new AttentionRunner);
  runner->max_clusters_ = processors / 2;

  const CallLayout layout = lay_out_call(args, most_kv_splits({.num_processors = processors}));
  if (!schedule.has_value()) schedule = schedule_call(args, layout.max_kv_splits);
  runner->num_splits_ = std::count_if(schedule->entries.begin(), schedule->entries.end(), is_split);
  std::vector<std::byte> metadata(static_cast<size_t>(call_metadata_bytes(*schedule)));
  write_call_metadata(*schedule, metadata.data());
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(prepare_attention(), "attention kernels"));
  MLAPREFILL_RETURN_IF_ERROR(
      cuda_status(cudaMalloc(&runner->workspace_, static_cast<size_t>(layout.total_bytes)), "workspace"));
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(
      cudaMemcpy(runner->workspace_, metadata.data(), metadata.size(), cudaMemcpyHostToDevice), "metadata"));
  const DeviceSchedule uploaded{
      .metadata = runner->workspace_,
      .max_kv_splits = schedule->kv_splits,
      .partials = static_cast<std::byte*>(runner->workspace_) + layout.metadata_bytes};
  MLAPREFILL_RETURN_IF_ERROR(make_attention_call(args, find_tensor_map_encoder(), uploaded, runner->call_));
  return runner;
}

cudaError_t AttentionRunner::launch(cudaStream_t stream) const {
  return launch_attention(call_.dims, call_.element, call_.params, max_clusters_, stream);
}

}  // namespace mlaprefill::sm90
