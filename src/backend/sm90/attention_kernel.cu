// The Hopper attention kernel: persistent clusters of two CTAs, each one producer and two consumer
// warpgroups.
#include <cuda_runtime.h>

#include "backend/sm90/attention_launch.h"
#include "backend/sm90/attention_load.cuh"
#include "backend/sm90/attention_mainloop.cuh"

namespace mlaprefill::sm90 {
namespace {

constexpr uint32_t kAlignment = 1024;

template <class Traits>
__device__ void init_barriers(SharedStorage<Traits>& shared) {
  constexpr uint32_t kConsumerWarps = 4 * kConsumerWarpgroups;
  for (int stage = 0; stage < Traits::kStages; ++stage) {
    barrier_init(shared_address(&shared.k_full[stage]), 1);
    barrier_init(shared_address(&shared.v_full[stage]), 1);
    barrier_init(shared_address(&shared.k_empty[stage]), kStageArrivals);
    barrier_init(shared_address(&shared.v_empty[stage]), kStageArrivals);
  }
  barrier_init(shared_address(&shared.k_joined), kClusterCtas);
  barrier_init(shared_address(&shared.v_joined), kClusterCtas);
  barrier_init(shared_address(&shared.q_full), 1);
  barrier_init(shared_address(&shared.q_empty), kConsumerWarps);
  for (int slot = 0; slot < kItemSlots; ++slot) {
    barrier_init(shared_address(&shared.items[slot].full), 1);
    barrier_init(shared_address(&shared.items[slot].empty), kItemArrivals);
  }
  barrier_init(shared_address(&shared.claim_next), 1);
  fence_barrier_init();
}

template <class Traits>
__global__ void __cluster_dims__(kClusterCtas, 1, 1) __launch_bounds__(kThreads, 1)
    attention_kernel(const __grid_constant__ AttentionParams params) {
  extern __shared__ __align__(kAlignment) uint8_t storage[];
  auto& shared = *reinterpret_cast<SharedStorage<Traits>*>(storage);
  const uint32_t rank = cluster_rank();
  const int32_t warpgroup = static_cast<int32_t>(threadIdx.x / 128);

  if (threadIdx.x == 0) {
    prefetch_tensor_map(&params.q_map);
    prefetch_tensor_map(&params.k_nope_map);
    prefetch_tensor_map(&params.k_rope_map);
    prefetch_tensor_map(&params.v_map);
    init_barriers(shared);
  }
  cudaGridDependencySynchronize();
  cluster_sync();

  if (warpgroup == 0) {
    give_back_registers<kProducerRegisters>();
    if (threadIdx.x == 0) produce_keys(params, shared, rank);
    if (threadIdx.x == 32) produce_values(params, shared, rank);
    if (threadIdx.x == 64) produce_queries(params, shared, rank);
    if (threadIdx.x == 96 && rank == 0) schedule(params, shared);
    __syncwarp();
  } else {
    take_registers<kConsumerRegisters>();
    consume(params, shared, warpgroup - 1);
  }
  cluster_sync();  // the other CTA may still arrive at this one's barriers
}

template <class Traits>
cudaError_t launch(const AttentionParams& params, int32_t max_clusters, cudaStream_t stream) {
  constexpr uint32_t kBytes = sizeof(SharedStorage<Traits>);
  static const cudaError_t ready = cudaFuncSetAttribute(
      attention_kernel<Traits>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
  if (ready != cudaSuccess) return ready;
  // The kernel waits for its predecessors itself, after it has set up its barriers.
  cudaLaunchAttribute dependent;
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<uint32_t>(max_clusters * kClusterCtas);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, attention_kernel<Traits>, params);
}

}  // namespace

cudaError_t launch_attention(KernelDims dims, Element element, const AttentionParams& params,
                             int32_t max_clusters, cudaStream_t stream) {
  const bool bf16 = element == Element::kBF16;
  if (dims == KernelDims::k192x128) {
    return bf16 ? launch<AttentionTraits<Element::kBF16, 128, 64, 128>>(params, max_clusters, stream)
                : launch<AttentionTraits<Element::kF16, 128, 64, 128>>(params, max_clusters, stream);
  }
  return bf16 ? launch<AttentionTraits<Element::kBF16, 192, 64, 256>>(params, max_clusters, stream)
              : launch<AttentionTraits<Element::kF16, 192, 64, 256>>(params, max_clusters, stream);
}

}  // namespace mlaprefill::sm90
