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
  UpProjection product;
  AlignedBuffer latents, rope, rows, panel, transposed;
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

struct CallResources {
  CallResources(IsaLevel level_, int32_t num_threads) : level(level_), workers(num_threads) {}

  const KernelTable& kernels(Operand operand) const { return *kernel_table(level, operand); }

  IsaLevel level;
  Workers workers;
  Pool<TaskQueue> queues;
  Pool<WorkerScratch> scratch;
  Pool<LayerScratch> layers;
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

/// Runs body(scratch, task) for every task of the queue on as many workers as there is work for, between the
/// enter and leave of the kernels.
template <typename Body>
void run_tasks(CallResources& resources, const KernelTable& kernels, TaskQueue& queue, const Body& body) {
  auto worker = [&] {
    TaskQueue::Task task = queue.pop();
    if (task.piece == nullptr) return;
    Pool<WorkerScratch>::Lease scratch(resources.scratch);
    const FlushDenormals flush;
    kernels.enter();
    for (; task.piece != nullptr; task = queue.pop()) body(*scratch, task);
    kernels.leave();
  };
  const int64_t count = std::min<int64_t>(resources.workers.size(), queue.size());
  if (count > 0) resources.workers.run(static_cast<int32_t>(count), worker);
}

/// The operations of the backend. Arguments have been validated.
void attention(CallResources& resources, const AttentionArgs& args);
void expand(CallResources& resources, const ExpandArgs& args);
void fused_layer(CallResources& resources, const FusedLayerArgs& args);

}  // namespace mlaprefill::cpu
