// What the calls of one CPU backend share: kernels, threads, and scratch memory kept between calls.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "backend/cpu/flash.h"
#include "backend/cpu/flush_denormals.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/latents.h"
#include "backend/cpu/pack_chunk.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/tasks.h"
#include "backend/cpu/up_projection.h"
#include "backend/cpu/workers.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {

/// Buffers of one panel of keys being expanded.
struct ExpandScratch {
  void reserve(const MlaDims& dims, const PackedWeights& weights);

  UpProjection product;
  float* latents = nullptr;
  float* rope = nullptr;
  std::byte* rows = nullptr;  ///< the latents in the up-projection's operand type

 private:
  AlignedBuffer latent_buffer_, rope_buffer_, row_buffer_;
};

/// Scratch of one worker during one call.
struct WorkerScratch {
  Flash flash;
  ChunkPacker packer;
  ChunkProjector projector;
  ExpandScratch expand;
};

/// Scratch all workers of one fused layer call share.
struct LayerScratch {
  std::vector<RequestGroup> groups;
  LatentStore latents;
};

/// Scratch of one call. A worker's part is sized for any of the call's tasks before they start, so that which
/// worker meets which task never decides whether memory is allocated.
struct CallScratch {
  TaskQueue queue;
  LayerScratch layer;
  std::vector<WorkerScratch> workers;
};

struct CallResources {
  CallResources(IsaLevel level_, int32_t num_threads) : level(level_), workers(num_threads) {}

  const KernelTable& kernels(Operand operand) const { return *kernel_table(level, operand); }

  IsaLevel level;
  Workers workers;
  Pool<CallScratch> calls;
};

/// prepare(i) for every i below `preparations`, then body(worker scratch, task) for every task of the call's
/// queue, the latter between the enter and leave of the kernels, on as many workers as there is work for.
/// reserve(worker scratch) sizes the scratch of each first. One parallel region: workers wake while others
/// prepare.
template <typename Prepare, typename Reserve, typename Body>
void run_tasks(CallResources& resources, const KernelTable& kernels, CallScratch& scratch,
               int64_t preparations, const Prepare& prepare, const Reserve& reserve, const Body& body) {
  const int64_t count =
      std::min<int64_t>(resources.workers.size(), std::max(preparations, scratch.queue.size()));
  if (count == 0) return;
  scratch.workers.resize(static_cast<size_t>(resources.workers.size()));
  for (WorkerScratch& worker : scratch.workers) reserve(worker);
  std::atomic<size_t> next_worker = 0;
  std::atomic<int64_t> next_preparation = 0;
  std::atomic<int64_t> prepared = 0;
  auto work = [&] {
    WorkerScratch& worker = scratch.workers[next_worker.fetch_add(1)];
    for (int64_t i = next_preparation.fetch_add(1); i < preparations; i = next_preparation.fetch_add(1)) {
      prepare(i);
      prepared.fetch_add(1, std::memory_order_release);
    }
    // Short: whoever took a preparation is at it.
    while (prepared.load(std::memory_order_acquire) < preparations) std::this_thread::yield();
    const FlushDenormals flush;
    kernels.enter();
    for (TaskQueue::Task task = scratch.queue.pop(); task.piece != nullptr; task = scratch.queue.pop()) {
      body(worker, task);
    }
    kernels.leave();
  };
  resources.workers.run(static_cast<int32_t>(count), work);
}

/// The same without preparations.
template <typename Reserve, typename Body>
void run_tasks(CallResources& resources, const KernelTable& kernels, CallScratch& scratch,
               const Reserve& reserve, const Body& body) {
  run_tasks(
      resources, kernels, scratch, 0, [](int64_t) {}, reserve, body);
}

/// The operations of the backend. Arguments have been validated.
void attention(CallResources& resources, const AttentionArgs& args);
void expand(CallResources& resources, const ExpandArgs& args);
void fused_layer(CallResources& resources, const FusedLayerArgs& args);

}  // namespace mlaprefill::cpu
