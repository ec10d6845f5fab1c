// The whole layer on the device: repeatability, invariance, graphs, streams and threads, edge batches.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>

#include "backend/sm90/kv_splits.h"
#include "backend/sm90/metadata.h"
#include "gpu/device_fixture.h"
#include "verify/compare.h"
#include "verify/oracle.h"

namespace mlaprefill::sm90 {
namespace {

constexpr int32_t kBlockSize = 16;

/// Lengths around every tile and split of the kernel, with empty rows among them.
const std::vector<Request> kAdversarial{{1, 0},     {0, 0},     {64, 0},   {65, 129},  {0, 300},
                                        {128, 127}, {129, 1},   {5, 0},    {256, 512}, {257, 33},
                                        {1, 1000},  {300, 128}, {63, 255}, {192, 0},   {2, 2049}};

std::vector<Request> random_requests(verify::Random& random, int64_t max_requests, int64_t max_queries,
                                     int64_t max_context) {
  std::vector<Request> requests(static_cast<size_t>(random.below(max_requests + 1)));
  for (Request& request : requests) {
    request.queries = random.below(5) == 0 ? 0 : static_cast<int32_t>(random.below(max_queries + 1));
    request.context = random.below(3) == 0 ? 0 : static_cast<int32_t>(random.below(max_context + 1));
  }
  return requests;
}

Result<Plan> plan_of(const Backend& backend, const MlaDims& dims, const Batch& batch,
                     const PlanOptions& options) {
  return make_plan(dims, batch.ragged(), options, backend.device_properties());
}

/// Upload and one run.
Status run(const Backend& backend, DeviceLayer& layer, const Plan& plan, const Stream& stream) {
  if (const Status status = backend.upload(plan, layer.workspace(), stream.handle()); !status.ok()) {
    return status;
  }
  return layer.layer().run(plan, layer.tensors(plan.num_query_rows), layer.workspace(), LayerPath::kAuto,
                           stream.handle());
}

/// Compares the run's output with the oracle at `count` random (row, head) pairs and the first and last rows.
void expect_near_oracle(const Plan& plan, const DeviceLayer& layer, const Bytes& got, int64_t count) {
  LayerTensors host;
  host.q = layer.q.view();
  host.q.shape[0] = plan.num_query_rows;
  host.kv_latent = layer.kv_latent.view();
  host.kv_latent.shape[0] = plan.num_query_rows;
  host.k_rope = layer.k_rope.view();
  host.k_rope.shape[0] = plan.num_query_rows;
  host.cache.data = const_cast<verify::HostTensor&>(layer.cache).view();
  Bytes copy = got;
  const int64_t heads = plan.dims.num_heads;
  host.out = Tensor(copy.out.data(), DType::kBF16, {plan.num_query_rows, heads, plan.dims.v_head_dim});
  host.lse = {reinterpret_cast<float*>(copy.lse.data()), plan.num_query_rows, 1, LseBase::kNatural};

  std::vector<verify::RowHead> rows;
  verify::Random random(99);
  const std::vector<verify::RowHead> every = verify::all_rows(plan, std::vector<int64_t>{0, heads - 1});
  if (every.empty()) return;
  rows.push_back(every.front());
  rows.push_back(every.back());
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(every[static_cast<size_t>(random.below(static_cast<int64_t>(every.size())))]);
  }
  const auto expected = verify::expect_layer(plan, layer.kv_b_proj.view(), host, rows);
  const verify::Comparison comparison = verify::compare(expected, host.out, host.lse);
  EXPECT_TRUE(comparison.ok()) << comparison.failure;
}

/// Entries of the plan's schedule that are splits of keys.
int64_t split_entries(const Plan& plan) {
  std::vector<std::byte> bytes(static_cast<size_t>(plan.workspace.metadata_bytes));
  write_metadata(plan, bytes.data());
  const auto passes = static_cast<int64_t>(plan.passes.size());
  const auto* entries = reinterpret_cast<const AttentionEntry*>(
      bytes.data() + entries_offset_bytes(passes, plan.workspace.max_kv_splits));
  int64_t splits = 0;
  for (int64_t p = 0; p < passes; ++p) {
    PassRecord record;
    std::memcpy(&record, bytes.data() + pass_record_offset_bytes(p), sizeof(record));
    for (const AttentionSection& section : record.sections) {
      splits += std::count_if(entries + section.entry_begin,
                              entries + section.entry_begin + section.entry_count, is_split);
    }
  }
  return splits;
}

class LayerOnDevice : public DeviceTest {};

TEST_F(LayerOnDevice, FiftyRunsAreBitwiseEqual) {
  const MlaDims dims = deepseek_dims(16);
  const Batch batch(kAdversarial, kBlockSize, 400);
  for (const int64_t workspace_tokens : {int64_t{65536}, int64_t{1024}}) {
    const auto plan = plan_of(*backend, dims, batch, {.workspace_tokens = workspace_tokens});
    ASSERT_STATUS_OK(plan.status());
    DeviceLayer layer(*backend, dims, batch.query_rows(), kBlockSize, 400, plan->workspace.total_bytes);
    ASSERT_STATUS_OK(layer.status());
    const Stream stream;
    std::optional<Bytes> first;
    for (int i = 0; i < 50; ++i) {
      layer.poison_outputs(stream.cuda());
      layer.poison_workspace(stream.cuda());
      ASSERT_STATUS_OK(run(*backend, layer, plan.value(), stream));
      const Bytes bytes = layer.fetch(plan->num_query_rows, stream.cuda());
      if (!first) {
        first = bytes;
        expect_near_oracle(plan.value(), layer, bytes, 30);
      }
      ASSERT_TRUE(bytes == *first) << "run " << i << ", workspace of " << workspace_tokens << " tokens";
    }
  }
}

// Every split of an entry, carried state and empty rows in one short run, small enough for the slowest
// checkers.
TEST_F(LayerOnDevice, SmallLayerOverSeveralPasses) {
  const MlaDims dims = deepseek_dims(3);
  const Batch batch({{1, 40}, {0, 20}, {70, 0}, {130, 200}, {5, 300}}, kBlockSize, 60);
  const auto plan = plan_of(*backend, dims, batch, {.workspace_tokens = 256});
  ASSERT_STATUS_OK(plan.status());
  ASSERT_GT(plan->passes.size(), 2u);
  DeviceLayer layer(*backend, dims, batch.query_rows(), kBlockSize, 60, plan->workspace.total_bytes);
  ASSERT_STATUS_OK(layer.status());
  const Stream stream;
  ASSERT_STATUS_OK(run(*backend, layer, plan.value(), stream));
  expect_near_oracle(plan.value(), layer, layer.fetch(plan->num_query_rows, stream.cuda()), 50);
}

// Keys split between clusters, in one pass and in several that carry state; counters are zero again after
// each.
TEST_F(LayerOnDevice, FewTokensOverLongContexts) {
  const MlaDims dims = deepseek_dims(16);
  constexpr int32_t kBlocks = 1000;
  const Batch batch({{40, 9000}, {0, 20}, {3, 6000}}, kBlockSize, kBlocks);
  const Stream stream;
  for (const int64_t workspace_tokens : {65536, 4096}) {
    const auto plan = plan_of(*backend, dims, batch, {.workspace_tokens = workspace_tokens});
    ASSERT_STATUS_OK(plan.status());
    ASSERT_GT(split_entries(plan.value()), 0);
    DeviceLayer layer(*backend, dims, batch.query_rows(), kBlockSize, kBlocks, plan->workspace.total_bytes);
    ASSERT_STATUS_OK(layer.status());
    ASSERT_STATUS_OK(backend->upload(plan.value(), layer.workspace(), stream.handle()));
    std::optional<Bytes> first;
    for (int i = 0; i < 10; ++i) {
      layer.poison_outputs(stream.cuda());
      ASSERT_STATUS_OK(layer.layer().run(plan.value(), layer.tensors(plan->num_query_rows), layer.workspace(),
                                         LayerPath::kAuto, stream.handle()));
      const Bytes bytes = layer.fetch(plan->num_query_rows, stream.cuda());
      if (!first) {
        first = bytes;
        expect_near_oracle(plan.value(), layer, bytes, 20);
      }
      ASSERT_TRUE(bytes == *first) << "layer " << i << ", workspace of " << workspace_tokens << " tokens";
    }
  }
}

// One upload serves any number of layers: the counters are zero again after each.
TEST_F(LayerOnDevice, ManyLayersAfterOneUpload) {
  const MlaDims dims = deepseek_dims(16);
  const Batch batch(kAdversarial, kBlockSize, 400);
  const auto plan = plan_of(*backend, dims, batch, {.workspace_tokens = 2048});
  ASSERT_STATUS_OK(plan.status());
  DeviceLayer layer(*backend, dims, batch.query_rows(), kBlockSize, 400, plan->workspace.total_bytes);
  ASSERT_STATUS_OK(layer.status());
  const Stream stream;
  ASSERT_STATUS_OK(run(*backend, layer, plan.value(), stream));
  const Bytes first = layer.fetch(plan->num_query_rows, stream.cuda());
  for (int i = 0; i < 61; ++i) {
    layer.poison_outputs(stream.cuda());
    ASSERT_STATUS_OK(layer.layer().run(plan.value(), layer.tensors(plan->num_query_rows), layer.workspace(),
                                       LayerPath::kAuto, stream.handle()));
    ASSERT_TRUE(layer.fetch(plan->num_query_rows, stream.cuda()) == first) << "layer " << i;
  }
}

TEST_F(LayerOnDevice, InvariantModeIgnoresWorkspaceAndNeighbours) {
  const MlaDims dims = deepseek_dims(10);
  constexpr size_t kWatched = 9;  // 257 queries after 33 cached tokens
  const Batch batch(kAdversarial, kBlockSize, 400);
  const Stream stream;
  std::optional<Bytes> whole;
  for (const int64_t workspace_tokens : {65536, 4096, 1024, 640, 128}) {
    const auto plan =
        plan_of(*backend, dims, batch, {.workspace_tokens = workspace_tokens, .invariant = true});
    ASSERT_STATUS_OK(plan.status());
    DeviceLayer layer(*backend, dims, batch.query_rows(), kBlockSize, 400, plan->workspace.total_bytes);
    ASSERT_STATUS_OK(layer.status());
    layer.poison_workspace(stream.cuda());
    ASSERT_STATUS_OK(run(*backend, layer, plan.value(), stream));
    const Bytes bytes = layer.fetch(plan->num_query_rows, stream.cuda());
    if (!whole) whole = bytes;
    ASSERT_TRUE(bytes == *whole) << workspace_tokens << " tokens";
  }

  // The watched request alone, with its own rows moved to the front.
  int64_t first_row = 0;
  int32_t first_block = 0;
  for (size_t r = 0; r < kWatched; ++r) {
    first_row += kAdversarial[r].queries;
    first_block += (kAdversarial[r].context + kBlockSize - 1) / kBlockSize;
  }
  const Request watched = kAdversarial[kWatched];
  const RaggedBatch all = batch.ragged();
  const std::vector<int32_t> starts{0, watched.queries};
  const std::vector<int32_t> contexts{watched.context};
  RaggedBatch alone = all;
  alone.query_start_loc = starts;
  alone.context_lens = contexts;
  alone.block_table.data = all.block_table.data + kWatched * static_cast<size_t>(all.block_table.row_stride);
  alone.block_table.rows = 1;
  const auto plan =
      make_plan(dims, alone, {.workspace_tokens = 256, .invariant = true}, backend->device_properties());
  ASSERT_STATUS_OK(plan.status());
  DeviceLayer layer(*backend, dims, batch.query_rows(), kBlockSize, 400, plan->workspace.total_bytes);
  ASSERT_STATUS_OK(layer.status());
  ASSERT_STATUS_OK(backend->upload(plan.value(), layer.workspace(), stream.handle()));
  LayerTensors tensors = layer.tensors(batch.query_rows());
  const auto from_row = [&](auto tensor) {
    tensor.data = static_cast<char*>(const_cast<void*>(static_cast<const void*>(tensor.data))) +
                  first_row * tensor.stride[0] * size_bytes(tensor.dtype);
    tensor.shape[0] = watched.queries;
    return tensor;
  };
  tensors.q = from_row(tensors.q);
  tensors.kv_latent = from_row(tensors.kv_latent);
  tensors.k_rope = from_row(tensors.k_rope);
  tensors.out = from_row(tensors.out);
  tensors.lse.data += first_row;
  ASSERT_STATUS_OK(
      layer.layer().run(plan.value(), tensors, layer.workspace(), LayerPath::kAuto, stream.handle()));
  const Bytes bytes = layer.fetch(batch.query_rows(), stream.cuda());
  const int64_t row_elements = int64_t{dims.num_heads} * dims.v_head_dim;
  for (int64_t i = first_row * row_elements; i < (first_row + watched.queries) * row_elements; ++i) {
    ASSERT_EQ(bytes.out[static_cast<size_t>(i)], whole->out[static_cast<size_t>(i)]) << "element " << i;
  }
}

// Meaningful when it runs in a process of its own: nothing has been launched before the capture.
TEST_F(LayerOnDevice, CaptureComesBeforeAnyRun) {
  const MlaDims dims = deepseek_dims(16);
  const Batch batch(kAdversarial, kBlockSize, 400);
  const auto plan = plan_of(*backend, dims, batch, {.workspace_tokens = 2048});
  ASSERT_STATUS_OK(plan.status());
  DeviceLayer layer(*backend, dims, batch.query_rows(), kBlockSize, 400, plan->workspace.total_bytes);
  ASSERT_STATUS_OK(layer.status());
  const Stream stream;
  ASSERT_EQ(cudaStreamBeginCapture(stream.cuda(), cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status enqueued = layer.layer().run(plan.value(), layer.tensors(plan->num_query_rows),
                                            layer.workspace(), LayerPath::kAuto, stream.handle());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.cuda(), &graph), cudaSuccess);
  ASSERT_STATUS_OK(enqueued);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_STATUS_OK(backend->upload(plan.value(), layer.workspace(), stream.handle()));
  ASSERT_EQ(cudaGraphLaunch(executable, stream.cuda()), cudaSuccess);
  const Bytes replayed = layer.fetch(plan->num_query_rows, stream.cuda());
  layer.poison_outputs(stream.cuda());
  ASSERT_STATUS_OK(run(*backend, layer, plan.value(), stream));
  EXPECT_TRUE(layer.fetch(plan->num_query_rows, stream.cuda()) == replayed);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_F(LayerOnDevice, GraphReplayOfTwoHundredPlansEqualsEager) {
  const MlaDims dims = deepseek_dims(16);
  constexpr int64_t kRows = 768;
  constexpr int32_t kBlocks = 1024;
  PlanOptions options;
  options.workspace_tokens = 2048;
  PlanBounds bounds;
  bounds.max_requests = 8;
  bounds.max_query_rows = kRows;
  bounds.max_passes = 3;
  bounds.block_size = kBlockSize;
  options.bounds = bounds;
  verify::Random random(2026);
  const auto next_plan = [&]() -> std::optional<Plan> {
    for (;;) {
      const Batch batch(random_requests(random, 8, 200, 1500), kBlockSize, kBlocks, random.next());
      if (batch.query_rows() > kRows) continue;
      const auto plan = plan_of(*backend, dims, batch, options);
      if (plan.ok()) return plan.value();
      if (plan.status().code() != StatusCode::kLimitExceeded) {
        ADD_FAILURE() << plan.status().message();
        return std::nullopt;
      }
    }
  };
  const auto captured = next_plan();
  ASSERT_TRUE(captured.has_value());
  DeviceLayer layer(*backend, dims, kRows, kBlockSize, kBlocks, captured->workspace.total_bytes);
  ASSERT_STATUS_OK(layer.status());
  const Stream stream;
  ASSERT_STATUS_OK(run(*backend, layer, *captured, stream));

  ASSERT_EQ(cudaStreamBeginCapture(stream.cuda(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const Status enqueued = layer.layer().run(*captured, layer.tensors(captured->num_query_rows),
                                            layer.workspace(), LayerPath::kAuto, stream.handle());
  const Status refused = backend->upload(*captured, layer.workspace(), stream.handle());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream.cuda(), &graph), cudaSuccess);
  ASSERT_STATUS_OK(enqueued);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);

  for (int i = 0; i < 200; ++i) {
    const auto plan = next_plan();
    ASSERT_TRUE(plan.has_value());
    layer.poison_outputs(stream.cuda());
    ASSERT_STATUS_OK(backend->upload(*plan, layer.workspace(), stream.handle()));
    ASSERT_EQ(cudaGraphLaunch(executable, stream.cuda()), cudaSuccess);
    const Bytes replayed = layer.fetch(plan->num_query_rows, stream.cuda());
    layer.poison_outputs(stream.cuda());
    ASSERT_STATUS_OK(run(*backend, layer, *plan, stream));
    ASSERT_TRUE(layer.fetch(plan->num_query_rows, stream.cuda()) == replayed) << "plan " << i;
    if (i % 50 == 0) expect_near_oracle(*plan, layer, replayed, 10);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_F(LayerOnDevice, TwoThreadsOnTwoStreamsDoNotDisturbEachOther) {
  const MlaDims dims = deepseek_dims(16);
  const auto work = [&](uint64_t seed, int* wrong) {
    verify::Random random(seed);
    const Batch batch(random_requests(random, 12, 200, 800), kBlockSize, 700, seed);
    const auto plan = plan_of(*backend, dims, batch, {.workspace_tokens = 2048});
    if (!plan.ok()) return void(*wrong = 1000);
    DeviceLayer layer(*backend, dims, std::max<int64_t>(batch.query_rows(), 1), kBlockSize, 700,
                      plan->workspace.total_bytes, seed);
    if (!layer.status().ok()) return void(*wrong = 1001);
    const Stream stream;
    std::optional<Bytes> first;
    for (int i = 0; i < 100; ++i) {
      layer.poison_outputs(stream.cuda());
      if (!run(*backend, layer, plan.value(), stream).ok()) return void(*wrong = 1002);
      const Bytes bytes = layer.fetch(plan->num_query_rows, stream.cuda());
      if (!first) first = bytes;
      if (!(bytes == *first)) ++*wrong;
    }
    expect_near_oracle(plan.value(), layer, *first, 5);
  };
  int wrong[2] = {};
  std::thread one(work, 11, &wrong[0]);
  std::thread two(work, 23, &wrong[1]);
  one.join();
  two.join();
  EXPECT_EQ(wrong[0], 0);
  EXPECT_EQ(wrong[1], 0);
}

TEST_F(LayerOnDevice, BatchesWithoutWork) {
  const MlaDims dims = deepseek_dims(16);
  const Stream stream;
  for (const std::vector<Request>& requests :
       {std::vector<Request>{}, std::vector<Request>{{0, 0}}, std::vector<Request>{{0, 40}, {0, 0}}}) {
    const Batch batch(requests, kBlockSize, 16);
    const auto plan = plan_of(*backend, dims, batch, {});
    ASSERT_STATUS_OK(plan.status());
    DeviceLayer layer(*backend, dims, 1, kBlockSize, 16, plan->workspace.total_bytes);
    ASSERT_STATUS_OK(layer.status());
    ASSERT_STATUS_OK(run(*backend, layer, plan.value(), stream));
  }
}

TEST_F(LayerOnDevice, SeventyThousandRequests) {
  const MlaDims dims = deepseek_dims(1);
  std::vector<Request> requests(70000);
  for (size_t r = 0; r < requests.size(); ++r) {
    requests[r] = {static_cast<int32_t>(r % 7 == 3 ? 0 : 1), static_cast<int32_t>(r % 5)};
  }
  const Batch batch(requests, 4, 70000);
  const auto plan = plan_of(*backend, dims, batch, {.workspace_tokens = 100000});
  ASSERT_STATUS_OK(plan.status());
  DeviceLayer layer(*backend, dims, batch.query_rows(), 4, 70000, plan->workspace.total_bytes);
  ASSERT_STATUS_OK(layer.status());
  const Stream stream;
  ASSERT_STATUS_OK(run(*backend, layer, plan.value(), stream));
  expect_near_oracle(plan.value(), layer, layer.fetch(plan->num_query_rows, stream.cuda()), 200);
}

}  // namespace
}  // namespace mlaprefill::sm90
