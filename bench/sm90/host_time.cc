// Host time of enqueueing: a planned attention call, a whole layer, a layer under graph replay, an upload;
// with an idle stream and with one that is blocked by a 50 ms kernel. Prints one JSON object.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "gpu/device_fixture.h"
#include "require.h"
#include "spin.h"

namespace mlaprefill::bench {
namespace {

using sm90::Batch;
using sm90::DeviceLayer;

constexpr int kLayers = 61;
constexpr int kRounds = 15;
constexpr double kBlockMilliseconds = 50;

/// Median microseconds of one of `calls` calls made by `enqueue`.
double median_us(cudaStream_t stream, bool blocked, int calls, const std::function<void()>& enqueue) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    require(cudaStreamSynchronize(stream));
    if (blocked) require(spin(kBlockMilliseconds, stream));
    const auto begin = std::chrono::steady_clock::now();
    enqueue();
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
    if (blocked && cudaStreamQuery(stream) != cudaErrorNotReady) stop("the stream must still be blocked");
    times.push_back(taken.count() / calls);
  }
  require(cudaStreamSynchronize(stream));
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

struct Setup {
  const char* name;
  int32_t heads;
  std::vector<sm90::Request> requests;
};

/// The layer's attention over pass 0, as the layer itself would call it.
AttentionArgs attention_of(const Plan& plan, const LayerTensors& tensors, Workspace workspace) {
  const MlaDims& dims = plan.dims;
  auto* base = static_cast<char*>(workspace.data);
  const int64_t rows = plan.passes.front().rows;
  const int64_t width = dims.expanded_head_dim();
  char* expanded = base + plan.workspace.expanded_offset_bytes;
  char* latent = base + plan.workspace.latent_offset_bytes;
  AttentionArgs args;
  args.q = tensors.q;
  args.k = ConstTensor(expanded, DType::kBF16, {rows, dims.num_heads, dims.qk_nope_head_dim},
                       {dims.num_heads * width, width, 1});
  args.v = ConstTensor(expanded + 2 * dims.qk_nope_head_dim, DType::kBF16,
                       {rows, dims.num_heads, dims.v_head_dim}, {dims.num_heads * width, width, 1});
  args.k_rope = ConstTensor(latent + 2 * dims.kv_lora_rank, DType::kBF16, {rows, dims.qk_rope_head_dim},
                            {dims.latent_dim(), 1});
  args.softmax_scale = dims.softmax_scale;
  args.out = tensors.out;
  args.lse = tensors.lse;
  args.plan = &plan;
  args.workspace = workspace;
  return args;
}

nlohmann::json measure(const Backend& backend, const Setup& setup, bool blocked) {
  const MlaDims dims = sm90::deepseek_dims(setup.heads);
  const Batch batch(setup.requests, 64, 2048);
  auto planned = make_plan(dims, batch.ragged(), {}, backend.device_properties());
  require(planned.status());
  const Plan& plan = planned.value();
  DeviceLayer layer(backend, dims, batch.query_rows(), 64, 2048, plan.workspace.total_bytes);
  require(layer.status());
  const sm90::Stream stream;
  const LayerTensors tensors = layer.tensors(plan.num_query_rows);
  const Workspace workspace = layer.workspace();
  const auto run_layers = [&] {
    for (int i = 0; i < kLayers; ++i) {
      require(layer.layer().run(plan, tensors, workspace, LayerPath::kAuto, stream.handle()));
    }
  };
  require(backend.upload(plan, workspace, stream.handle()));
  run_layers();
  const AttentionArgs attention = attention_of(plan, tensors, workspace);

  require(cudaStreamSynchronize(stream.cuda()));
  require(cudaStreamBeginCapture(stream.cuda(), cudaStreamCaptureModeThreadLocal));
  run_layers();
  cudaGraph_t graph = nullptr;
  require(cudaStreamEndCapture(stream.cuda(), &graph));
  cudaGraphExec_t executable = nullptr;
  require(cudaGraphInstantiate(&executable, graph, 0));
  require(cudaGraphLaunch(executable, stream.cuda()));

  nlohmann::json result;
  result["case"] = setup.name;
  result["heads"] = setup.heads;
  result["stream"] = blocked ? "blocked" : "idle";
  result["passes"] = plan.passes.size();
  result["attention_call_us"] = median_us(stream.cuda(), blocked, kLayers, [&] {
    for (int i = 0; i < kLayers; ++i) require(backend.attention(attention, stream.handle()));
  });
  result["layer_us"] = median_us(stream.cuda(), blocked, kLayers, run_layers);
  result["upload_us"] = median_us(stream.cuda(), blocked, 1,
                                  [&] { require(backend.upload(plan, workspace, stream.handle())); });
  result["graph_layer_us"] = median_us(stream.cuda(), blocked, kLayers, [&] {
    require(backend.upload(plan, workspace, stream.handle()));
    require(cudaGraphLaunch(executable, stream.cuda()));
  });
  require(cudaGraphExecDestroy(executable));
  require(cudaGraphDestroy(graph));
  return result;
}

}  // namespace
}  // namespace mlaprefill::bench

int main() {
  using namespace mlaprefill;
  auto backend = open_backend("sm90");
  if (!backend.ok()) bench::stop(backend.status().message());
  std::vector<sm90::Request> mixed{{4096, 0}, {1, 900}, {2048, 4000}, {0, 70}, {512, 0}, {333, 12000}};
  for (int i = 0; i < 15; ++i) mixed.push_back({60 + i, 100 * i});
  const bench::Setup setups[] = {{"256 new tokens", 16, {{256, 0}}},
                                 {"21 requests, 8130 new tokens", 16, mixed},
                                 {"256 new tokens", 128, {{256, 0}}}};
  nlohmann::json report;
  report["schema"] = "mlaprefill.host_time/1";
  report["device"] = backend.value()->description();
  report["layers"] = bench::kLayers;
  report["rounds"] = bench::kRounds;
  report["block_ms"] = bench::kBlockMilliseconds;
  for (const bench::Setup& setup : setups) {
    for (const bool blocked : {false, true}) {
      report["results"].push_back(bench::measure(*backend.value(), setup, blocked));
    }
  }
  fmt::print("{}\n", report.dump(1));
}
