#include "gpu/attention/attention_runner.h"

#include <vector>

#include "backend/internal.h"
#include "backend/sm90/cuda_status.h"
#include "backend/sm90/metadata.h"
#include "core/error.h"

namespace mlaprefill::sm90 {

Result<std::unique_ptr<AttentionRunner>> AttentionRunner::create(const AttentionArgs& args) {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  std::vector<std::byte> metadata(static_cast<size_t>(call_metadata_bound_bytes(args)));
  const auto size_bytes = static_cast<size_t>(write_call_metadata(args, metadata.data()));
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(prepare_attention(), "attention kernels"));
  std::unique_ptr<AttentionRunner> runner(new AttentionRunner);
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaMalloc(&runner->metadata_, size_bytes), "metadata"));
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(
      cudaMemcpy(runner->metadata_, metadata.data(), size_bytes, cudaMemcpyHostToDevice), "metadata"));
  MLAPREFILL_RETURN_IF_ERROR(
      make_attention_call(args, find_tensor_map_encoder(), runner->metadata_, 1, runner->call_));
  int device = 0;
  int processors = 0;
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaGetDevice(&device), "device"));
  MLAPREFILL_RETURN_IF_ERROR(
      cuda_status(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "device"));
  runner->max_clusters_ = processors / 2;
  return runner;
}

cudaError_t AttentionRunner::launch(cudaStream_t stream) const {
  return launch_attention(call_.dims, call_.element, call_.params, max_clusters_, stream);
}

}  // namespace mlaprefill::sm90
