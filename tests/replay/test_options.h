// A model small enough for the reference backend.
#pragma once

#include "replay/report.h"
#include "replay/workloads.h"

namespace mlaprefill {

inline ReplayOptions small_options() {
  ReplayOptions options;
  options.model.name = "small";
  options.model.source = "test";
  options.model.dims = {4, 32, 16, 16, 16, 0.18};
  options.model.num_layers = 3;
  options.model.max_context_tokens = 4096;
  options.tp = 2;
  options.dims = options.model.dims;
  options.dims.num_heads = 2;
  options.scheduler.budget_tokens = 64;
  options.scheduler.block_tokens = 16;
  options.scheduler.cache_tokens = 2048;
  options.backend = "reference";
  return options;
}

inline Trace small_trace() {
  WorkloadOptions options;
  options.requests = 30;
  options.length_divisor = 512;
  return make_workload("agentic", options).value();
}

}  // namespace mlaprefill
