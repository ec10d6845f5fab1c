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
  constexpr uint32_t kWarps = 4;  // of a warpgroup
  for (int stage = 0; stage < Traits::kStages; ++stage) {
    barrier_init(shared_address(&shared.k_full[stage]), 1);
    barrier_init(shared_address(&shared.v_full[stage]), 1);
    barrier_init(shared_address(&shared.k_empty[stage]), kStageArrivals);
    barrier_init(shared_address(&shared.v_empty[stage]), kStageArrivals);
  }
  barrier_init(shared_address(&shared.k_joined), kClusterCtas);
  barrier_init(shared_address(&shared.v_joined), kClusterCtas);
  for (int warpgroup = 0; warpgroup < kConsumerWarpgroups; ++warpgroup) {
    barrier_init(shared_address(&shared.q_full[warpgroup]), 1);
    barrier_init(shared_address(&shared.q_empty[warpgroup]), kWarps);
  }
  for (int slot = 0; slot < kItemSlots; ++slot) {
    barrier_init(shared_address(&shared.items[slot].full), 1);
    barrier_init(shared_address(&shared.items[slot].empty), kItemArrivals);
  }
  barrier_init(shared_address(&shared.claim_next), 1);
  barrier_init(shared_address(&shared.started), 2);
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

/// One compiled kernel.
struct Instance {
  void (*kernel)(const AttentionParams);
  uint32_t shared_bytes;
};

template <Element kElement>
Instance instance(KernelDims dims) {
  using Narrow = AttentionTraits<kElement, 128, 64, 128>;
  using Wide = AttentionTraits<kElement, 192, 64, 256>;
  if (dims == KernelDims::k192x128) return {attention_kernel<Narrow>, sizeof(SharedStorage<Narrow>)};
  return {attention_kernel<Wide>, sizeof(SharedStorage<Wide>)};
}

Instance instance(KernelDims dims, Element element) {
  return element == Element::kBF16 ? instance<Element::kBF16>(dims) : instance<Element::kF16>(dims);
}

}  // namespace

cudaError_t prepare_attention() {
  for (const KernelDims dims : {KernelDims::k192x128, KernelDims::k256x256}) {
    for (const Element element : {Element::kBF16, Element::kF16}) {
      const auto [kernel, shared_bytes] = instance(dims, element);
      const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                      static_cast<int>(shared_bytes));
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

cudaError_t launch_attention(KernelDims dims, Element element, const AttentionParams& params,
                             int32_t max_clusters, cudaStream_t stream) {
  const auto [kernel, shared_bytes] = instance(dims, element);
  // The kernel waits for its predecessors itself, after it has set up its barriers.
  cudaLaunchAttribute dependent;
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<uint32_t>(max_clusters * kClusterCtas);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace mlaprefill::sm90
