// Host time of make_plan. bench/plan/run writes bench/results/plan.json.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "mlaprefill/plan.h"

namespace mlaprefill {
namespace {

constexpr int32_t kBlockSize = 64;
constexpr int32_t kLongestContext = 8192;

/// Requests as they come from a scheduler with a prefix cache: 1 to 256 new tokens, three in four with up to
/// 8,192 cached tokens, and a block table of 64-token blocks.
struct Batch {
  std::vector<int32_t> query_start_loc{0};
  std::vector<int32_t> context_lens;
  std::vector<int32_t> block_ids;

  explicit Batch(int64_t requests) {
    std::mt19937_64 random(20261130);
    const size_t cols = kLongestContext / kBlockSize;
    for (int64_t r = 0; r < requests; ++r) {
      query_start_loc.push_back(query_start_loc.back() + 1 + static_cast<int32_t>(random() % 256));
      context_lens.push_back(random() % 4 == 0 ? 0 : static_cast<int32_t>(random() % kLongestContext));
    }
    block_ids.resize(static_cast<size_t>(requests) * cols);
    for (int32_t& id : block_ids) id = static_cast<int32_t>(random() % 100000);
  }

  RaggedBatch view() const {
    RaggedBatch batch;
    batch.query_start_loc = query_start_loc;
    batch.context_lens = context_lens;
    const int64_t cols = kLongestContext / kBlockSize;
    batch.block_table = {block_ids.data(), static_cast<int64_t>(context_lens.size()), cols, cols};
    batch.block_size = kBlockSize;
    batch.num_cache_blocks = 100000;
    return batch;
  }
};

void plan_once_per_iteration(benchmark::State& state, const PlanOptions& options,
                             const DeviceProperties& device) {
  const MlaDims deepseek_v3{128, 512, 128, 64, 128, 0.1352337788608801};
  const Batch batch(state.range(0));
  for (auto _ : state) {
    Result<Plan> plan = make_plan(deepseek_v3, batch.view(), options, device);
    if (!plan.ok()) {
      state.SkipWithError(plan.status().message().c_str());
      return;
    }
    benchmark::DoNotOptimize(plan->passes.data());
  }
  state.SetComplexityN(state.range(0));
  state.counters["plans_per_second"] = benchmark::Counter(1, benchmark::Counter::kIsIterationInvariantRate);
}

void make_plan_of_mode(benchmark::State& state, PlanMode mode, bool invariant) {
  PlanOptions options;
  options.mode = mode;
  options.invariant = invariant;
  plan_once_per_iteration(state, options, {});
}

void make_plan_with_tiles(benchmark::State& state) {
  const DeviceProperties hopper{
      .num_processors = 132, .query_tile_tokens = 128, .key_tile_tokens = 128, .row_alignment_rows = 1};
  plan_once_per_iteration(state, {}, hopper);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Arg(4)
      ->RangeMultiplier(2)
      ->Range(64, 8192)
      ->Unit(benchmark::kMicrosecond)
      ->Complexity(benchmark::oN);
}

BENCHMARK_CAPTURE(make_plan_of_mode, bridge, PlanMode::kBridge, false)->Apply(sizes);
BENCHMARK_CAPTURE(make_plan_of_mode, bridge_invariant, PlanMode::kBridge, true)->Apply(sizes);
BENCHMARK_CAPTURE(make_plan_of_mode, min_continuation, PlanMode::kMinContinuation, false)->Apply(sizes);
BENCHMARK_CAPTURE(make_plan_of_mode, min_continuation_invariant, PlanMode::kMinContinuation, true)
    ->Apply(sizes);
BENCHMARK_CAPTURE(make_plan_of_mode, vllm, PlanMode::kVllm, false)->Apply(sizes);
BENCHMARK(make_plan_with_tiles)->Apply(sizes);

}  // namespace
}  // namespace mlaprefill
