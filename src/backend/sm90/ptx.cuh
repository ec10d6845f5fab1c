// Thin wrappers over the sm_90a instructions the attention kernel uses. One instruction each, no policy.
// Shared memory addresses are 32-bit: window offsets of the CTA, or of the cluster where the name says so.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace mlaprefill::sm90 {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Makes freshly initialised barriers visible to the other CTA of the cluster and to TMA.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// `barrier` is a cluster address; the barrier may be in either CTA.
__device__ __forceinline__ void cluster_barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

/// `barrier` is a cluster address. Scope stays the CTA on purpose: `.release.cluster` costs a full memory
/// fence in the main loop, and only TMA writes and wgmma reads are ordered through these barriers.
__device__ __forceinline__ void cluster_barrier_arrive(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Sleeps until the barrier's phase of this parity completes, or a long time passes.
__device__ __forceinline__ bool barrier_try_wait(uint32_t barrier, uint32_t parity) {
  constexpr uint32_t kNanoseconds = 10'000'000;
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred complete;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 complete, [%1], %2, %3;\n\t"
      "selp.u32 %0, 1, 0, complete;\n\t}"
      : "=r"(done)
      : "r"(barrier), "r"(parity), "n"(kNanoseconds)
      : "memory");
  return done != 0;
}

/// Waits until the barrier's phase of this parity has completed.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

/// Barriers 1 to 15 of a CTA, for two warpgroups: the 128 threads of one wait until those of the other have
/// arrived, which must not arrive again before.
__device__ __forceinline__ void named_barrier_wait(int32_t barrier) {
  asm volatile("bar.sync %0, 256;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int32_t barrier) {
  asm volatile("bar.arrive %0, 256;" ::"r"(barrier) : "memory");
}

/// threadIdx.x, read anew at each call: what follows from it is not kept in registers across the main loop.
__device__ __forceinline__ uint32_t thread_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

/// Tells the compiler that a value is the same in the whole warp, so that what follows from it, such as the
/// descriptors of matrix operands, is computed in uniform registers.
template <class Integer>
__device__ __forceinline__ Integer uniform(Integer x) {
  return __shfl_sync(0xFFFFFFFF, x, 0);
}

// ---- warpgroup registers

template <uint32_t kRegisters>
__device__ __forceinline__ void give_back_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <uint32_t kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- clusters

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Cluster address of the same shared memory offset in CTA `rank` of the cluster.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n\t"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// Writes 16 bytes at a cluster address and counts them on a barrier of the same CTA.
__device__ __forceinline__ void cluster_store_async(uint32_t address, int4 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
      : "memory");
}

// ---- tensor copies

/// A box position in a ragged tensor map (see tensor_map.h): column, head, then three coordinates that make
/// the hardware's bound check fall at the end of the sequence.
struct BoxPosition {
  int32_t column;
  int32_t head;
  int32_t distance;  ///< kRaggedExtent - sequence length + row in the sequence
  int32_t end;       ///< first row of the sequence in the tensor + sequence length
};

inline constexpr int32_t kRaggedExtent = 1 << 30;

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void load_box(uint32_t destination, const CUtensorMap* map, BoxPosition at,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(destination),
      "l"(map), "r"(at.column), "r"(at.head), "r"(at.distance), "r"(at.end), "r"(kRaggedExtent), "r"(barrier),
      "l"(policy)
      : "memory");
}

/// Loads the box into the same offset of both CTAs of the cluster; each CTA's barrier counts its copy.
__device__ __forceinline__ void load_box_multicast(uint32_t destination, const CUtensorMap* map,
                                                   BoxPosition at, uint32_t barrier, uint64_t policy) {
  constexpr uint16_t kBothCtas = 0b11;
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8, %9;" ::"r"(destination),
      "l"(map), "r"(at.column), "r"(at.head), "r"(at.distance), "r"(at.end), "r"(kRaggedExtent), "r"(barrier),
      "h"(kBothCtas), "l"(policy)
      : "memory");
}

/// Makes this thread's writes to shared memory visible to the copies it or a thread synchronised with it
/// starts.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Writes a box; rows past the end of the sequence are left out.
__device__ __forceinline__ void store_box(const CUtensorMap* map, BoxPosition at, uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];\n\t"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(at.column), "r"(at.head), "r"(at.distance), "r"(at.end), "r"(kRaggedExtent), "r"(source)
      : "memory");
}

/// Waits until the memory of this thread's stores may be written again, or be gone.
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// L2 policies in the encoding of createpolicy.fractional with fraction 1.
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000;

// ---- fragments

template <int kCount>
__device__ __forceinline__ void clear(float (&fragment)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) fragment[i] = 0.0f;
}

__device__ __forceinline__ void load_matrix_x4(uint32_t (&out)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ float log2_approximate(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace mlaprefill::sm90
