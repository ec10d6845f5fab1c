// The fused layer: equal to the composed one, independent of what it must not depend on, free of allocation.
#include <gtest/gtest.h>

#include <thread>

#include "levels.h"
#include "mlaprefill/layer.h"
#include "support/allocation_count.h"
#include "verify/compare.h"
#include "verify/oracle.h"

namespace mlaprefill::cpu {
namespace {

const MlaDims kDims{3, 128, 64, 32, 64, 0.15};
constexpr int32_t kBlockSize = 16;

/// A batch with tensors; requests' context lies in blocks of a shuffled cache.
struct LayerCase {
  LayerCase(DType dtype, std::vector<int32_t> query_lens, std::vector<int32_t> context_lens_)
      : context_lens(std::move(context_lens_)) {
    int32_t blocks = 0;
    for (size_t r = 0; r < query_lens.size(); ++r) {
      query_start_loc.push_back(query_start_loc.back() + query_lens[r]);
      max_blocks = std::max<int64_t>(max_blocks, (context_lens[r] + kBlockSize - 1) / kBlockSize);
      blocks += (context_lens[r] + kBlockSize - 1) / kBlockSize;
    }
    tokens = query_start_loc.back();
    num_blocks = blocks + 1;
    int32_t next = blocks;
    for (int32_t context : context_lens) {
      for (int64_t column = 0; column < max_blocks; ++column) {
        block_table.push_back(column * kBlockSize < context ? next-- : -1);
      }
    }
    weight = Array::random(dtype, kDims.num_heads * kDims.expanded_head_dim() * kDims.kv_lora_rank, 1, 0.2f);
    q = Array::random(dtype, tokens * kDims.num_heads * kDims.qk_head_dim(), 2);
    latent = Array::random(dtype, tokens * kDims.kv_lora_rank, 3);
    rope = Array::random(dtype, tokens * kDims.qk_rope_head_dim, 4);
    cache = Array::random(dtype, num_blocks * kBlockSize * kDims.latent_dim(), 5);
    out = Array(dtype, tokens * kDims.num_heads * kDims.v_head_dim);
    lse.assign(static_cast<size_t>(kDims.num_heads * tokens), 7.0f);
  }

  Plan plan(const Backend& backend, PlanOptions options) const {
    RaggedBatch batch;
    batch.query_start_loc = query_start_loc;
    batch.context_lens = context_lens;
    batch.block_table = {block_table.data(), static_cast<int64_t>(context_lens.size()), max_blocks,
                         max_blocks};
    batch.block_size = kBlockSize;
    batch.num_cache_blocks = num_blocks;
    options.working_dtype = q.dtype();
    auto made = make_plan(kDims, batch, options, backend.device_properties());
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }

  LayerTensors tensors() {
    LayerTensors t;
    t.q = ConstTensor(q.data(), q.dtype(), {tokens, kDims.num_heads, kDims.qk_head_dim()});
    t.kv_latent = ConstTensor(latent.data(), latent.dtype(), {tokens, kDims.kv_lora_rank});
    t.k_rope = ConstTensor(rope.data(), rope.dtype(), {tokens, kDims.qk_rope_head_dim});
    t.cache.data = Tensor(cache.data(), cache.dtype(), {num_blocks, kBlockSize, kDims.latent_dim()});
    t.out = Tensor(out.data(), out.dtype(), {tokens, kDims.num_heads, kDims.v_head_dim});
    t.lse = {lse.data(), tokens, 1, LseBase::kNatural};
    return t;
  }

  MlaLayer layer(const Backend& backend) {
    auto made =
        MlaLayer::create(backend, kDims,
                         ConstTensor(weight.data(), weight.dtype(),
                                     {kDims.num_heads * kDims.expanded_head_dim(), kDims.kv_lora_rank}));
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::move(made).value();
  }

  void run(const Backend& backend, const PlanOptions& options, LayerPath path = LayerPath::kFused) {
    const Plan made = plan(backend, options);
    std::vector<std::byte> workspace(static_cast<size_t>(made.workspace.total_bytes + 64), std::byte{0xFF});
    void* aligned = workspace.data();
    size_t space = workspace.size();
    std::align(64, static_cast<size_t>(made.workspace.total_bytes), aligned, space);
    const Status status = layer(backend).run(made, tensors(), {aligned, made.workspace.total_bytes}, path);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::vector<int32_t> query_start_loc = {0};
  std::vector<int32_t> context_lens;
  std::vector<int32_t> block_table;
  int64_t max_blocks = 0;
  int64_t num_blocks = 0;
  int64_t tokens = 0;
  Array weight, q, latent, rope, cache, out;
  std::vector<float> lse;
};

const std::vector<int32_t> kQueries = {5, 0, 130, 3, 4, 1, 70, 2};
const std::vector<int32_t> kContexts = {40, 9, 300, 0, 0, 511, 0, 33};

class CpuLayer : public EachLevel {};

TEST_P(CpuLayer, InvariantFusedAndComposedAgreeBitwiseForEveryWorkspace) {
  const auto backend = open_level(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(to_string(dtype));
    PlanOptions options;
    options.invariant = true;
    LayerCase first(dtype, kQueries, kContexts);
    first.run(*backend, options);
    for (int64_t workspace : {64, 1000, 65536}) {
      for (LayerPath path : {LayerPath::kFused, LayerPath::kComposed}) {
        SCOPED_TRACE(testing::Message() << workspace << (path == LayerPath::kFused ? " fused" : " composed"));
        options.workspace_tokens = workspace;
        LayerCase other(dtype, kQueries, kContexts);
        other.run(*backend, options, path);
        EXPECT_EQ(first.out.bytes(), other.out.bytes());
        EXPECT_EQ(first.lse, other.lse);
      }
    }
  }
}

TEST_P(CpuLayer, InvariantRequestAloneEqualsItselfAmongOthers) {
  PlanOptions options;
  options.invariant = true;
  LayerCase among(DType::kBF16, {4, 6}, {0, 0});
  among.run(*open_level(GetParam(), 2), options);
  LayerCase alone(DType::kBF16, {4}, {0});
  alone.run(*open_level(GetParam(), 1), options);
  EXPECT_TRUE(std::equal(alone.out.bytes().begin(), alone.out.bytes().end(), among.out.bytes().begin()));
}

TEST_P(CpuLayer, ShortRequestsThatShareAPanelStayApart) {
  const auto backend = open_level(GetParam());
  LayerCase c(DType::kBF16, {4, 4, 0, 30, 4, 64, 1, 2, 60}, {0, 3, 0, 34, 0, 0, 17, 62, 1});
  // A NaN in one request's latents must not reach its neighbours in the panel.
  c.latent.set(5 * kDims.kv_lora_rank, std::numeric_limits<float>::quiet_NaN());
  c.run(*backend, {});
  const Plan plan = c.plan(*backend, {});
  const LayerTensors t = c.tensors();
  const auto expected =
      verify::expect_layer(plan,
                           ConstTensor(c.weight.data(), c.weight.dtype(),
                                       {kDims.num_heads * kDims.expanded_head_dim(), kDims.kv_lora_rank}),
                           t, verify::all_rows(plan, verify::all_heads(kDims.num_heads)));
  const verify::Comparison comparison = verify::compare(expected, t.out, t.lse);
  EXPECT_TRUE(comparison.ok()) << comparison.failure;
}

TEST_P(CpuLayer, NothingIsAllocatedAfterTheFirstCall) {
  if (!kAllocationsAreCounted) GTEST_SKIP() << "ThreadSanitizer brings its own operator new";
  const auto backend = open_level(GetParam());
  LayerCase c(DType::kBF16, kQueries, kContexts);
  const MlaLayer layer = c.layer(*backend);
  const Plan plan = c.plan(*backend, {});
  const LayerTensors t = c.tensors();
  ASSERT_TRUE(layer.run(plan, t, {}, LayerPath::kFused).ok());
  const int64_t before = allocation_count();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(layer.run(plan, t, {}, LayerPath::kFused).ok());
  EXPECT_EQ(allocation_count() - before, 0);
}

TEST_P(CpuLayer, ManyHostThreadsUseOneBackendAtOnce) {
  const auto backend = open_level(GetParam());
  LayerCase expected(DType::kBF16, kQueries, kContexts);
  expected.run(*backend, {});
  std::vector<LayerCase> cases(4, expected);
  std::vector<std::thread> threads;
  for (LayerCase& c : cases) {
    threads.emplace_back([&c, &backend] {
      for (int i = 0; i < 5; ++i) c.run(*backend, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const LayerCase& c : cases) EXPECT_EQ(c.out.bytes(), expected.out.bytes());
}

TEST_P(CpuLayer, WeightsOfOtherDimsOrBackendsAreRefused) {
  const auto backend = open_level(GetParam());
  LayerCase c(DType::kBF16, {3}, {0});
  const Plan plan = c.plan(*backend, {});
  MlaDims other = kDims;
  other.num_heads = 2;
  Array weight = Array::random(DType::kBF16, 2 * other.expanded_head_dim() * other.kv_lora_rank, 1);
  auto prepared = backend->prepare_weights(
      other, ConstTensor(weight.data(), DType::kBF16, {2 * other.expanded_head_dim(), other.kv_lora_rank}));
  ASSERT_TRUE(prepared.ok());
  FusedLayerArgs args{&plan, prepared.value().get(), c.tensors()};
  EXPECT_EQ(backend->fused_layer(args, {}).code(), StatusCode::kInvalidArgument);
  const LayerWeights foreign;
  args.weights = &foreign;
  EXPECT_EQ(backend->fused_layer(args, {}).code(), StatusCode::kInvalidArgument);
}

MLAPREFILL_FOR_EACH_LEVEL(CpuLayer);

}  // namespace
}  // namespace mlaprefill::cpu
