// What the calls of one CPU backend share: kernels, threads, and scratch memory kept between calls.
#pragma once

#include <algorithm>
#include <atomic>
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

/// Runs body(i) for every i below `count`, in any order, on as many workers as there is work for.
template <typename Body>
void run_indexed(CallResources& resources, int64_t count, const Body& body) {
  std::atomic<int64_t> next = 0;
  auto worker = [&] {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
  };
  resources.workers.run(static_cast<int32_t>(std::min<int64_t>(resources.workers.size(), count)), worker);
}

/// Runs body(worker scratch, task) for every task of the call's queue on as many workers as there is work
/// for, between the enter and leave of the kernels. reserve(worker scratch) sizes the scratch of each first.
template <typename Reserve, typename Body>
void run_tasks(CallResources& resources, const KernelTable& kernels, CallScratch& scratch,
               const Reserve& reserve, const Body& body) {
  const int64_t count = std::min<int64_t>(resources.workers.size(), scratch.queue.size());
  if (count == 0) return;
  scratch.workers.resize(static_cast<size_t>(resources.workers.size()));
  for (WorkerScratch& worker : scratch.workers) reserve(worker);
  std::atomic<size_t> next_worker = 0;
  auto work = [&] {
    WorkerScratch& worker = scratch.workers[next_worker.fetch_add(1)];
    const FlushDenormals flush;
    kernels.enter();
    for (TaskQueue::Task task = scratch.queue.pop(); task.piece != nullptr; task = scratch.queue.pop()) {
      body(worker, task);
    }
    kernels.leave();
  };
  resources.workers.run(static_cast<int32_t>(count), work);
}

/// The operations of the backend. Arguments have been validated.
void attention(CallResources& resources, const AttentionArgs& args);
void expand(CallResources& resources, const ExpandArgs& args);
void fused_layer(CallResources& resources, const FusedLayerArgs& args);

}  // namespace mlaprefill::cpu
