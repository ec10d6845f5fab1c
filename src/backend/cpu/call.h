// What the calls of one CPU backend share: kernels, threads, and scratch memory kept between calls.
#pragma once

#include <algorithm>

#include "backend/cpu/flash.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/pack_chunk.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/tasks.h"
#include "backend/cpu/workers.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {

/// Scratch of one worker during one call.
struct WorkerScratch {
  Flash flash;
  ChunkPacker packer;
};

struct CallResources {
  CallResources(IsaLevel level_, int32_t num_threads) : level(level_), workers(num_threads) {}

  const KernelTable& kernels(Operand operand) const { return *kernel_table(level, operand); }

  IsaLevel level;
  Workers workers;
  Pool<TaskQueue> queues;
  Pool<WorkerScratch> scratch;
};

/// Runs body(scratch, task) for every task of the queue on as many workers as there is work for, between the
/// enter and leave of the kernels.
template <typename Body>
void run_tasks(CallResources& resources, const KernelTable& kernels, TaskQueue& queue, const Body& body) {
  auto worker = [&] {
    TaskQueue::Task task = queue.pop();
    if (task.piece == nullptr) return;
    Pool<WorkerScratch>::Lease scratch(resources.scratch);
    kernels.enter();
    for (; task.piece != nullptr; task = queue.pop()) body(*scratch, task);
    kernels.leave();
  };
  const int64_t count = std::min<int64_t>(resources.workers.size(), queue.size());
  if (count > 0) resources.workers.run(static_cast<int32_t>(count), worker);
}

/// The operations of the backend. Arguments have been validated.
void attention(CallResources& resources, const AttentionArgs& args);

}  // namespace mlaprefill::cpu
