// Totals beyond 2^31 elements: cache slots, query rows and outputs far apart.
#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu/device_fixture.h"

namespace mlaprefill::sm90 {
namespace {

class FarApart : public DeviceTest {
 protected:
  void* allocate(int64_t size_bytes) {
    auto data = backend->memory().allocate(size_bytes);
    EXPECT_TRUE(data.ok()) << data.status().message();
    if (!data.ok()) return nullptr;
    allocated_.push_back(data.value());
    return data.value();
  }
  void TearDown() override {
    for (void* data : allocated_) backend->memory().release(data);
    DeviceTest::TearDown();
  }
  template <typename T>
  T* upload(const std::vector<T>& host) {
    const auto size_bytes = static_cast<int64_t>(host.size() * sizeof(T));
    void* data = allocate(size_bytes);
    EXPECT_TRUE(backend->memory().copy_from_host(data, host.data(), size_bytes, {}).ok());
    return static_cast<T*>(data);
  }

 private:
  std::vector<void*> allocated_;
};

// Slots whose byte offset passes 2^31 and whose element offset does too.
TEST_F(FarApart, AppendAndGatherReachHighSlots) {
  const MlaDims dims = deepseek_dims(1);
  constexpr int64_t kBlockSize = 16;
  constexpr int64_t kBlocks = 4'000'016 / kBlockSize;
  const std::vector<int64_t> slots{3'728'270, 4'000'000, -1, 17, 3'273'604};
  const auto tokens = static_cast<int64_t>(slots.size());
  verify::HostTensor latents(DType::kBF16, {tokens, 512});
  verify::HostTensor rope(DType::kBF16, {tokens, 64});
  verify::Random random(5);
  verify::fill_random(latents, random);
  verify::fill_random(rope, random);
  verify::Placement placement(*backend);
  AppendArgs append;
  append.kv_latent = placement.put(latents);
  append.k_rope = placement.put(rope);
  append.slot_mapping = upload(slots);
  void* cache = allocate(kBlocks * kBlockSize * 576 * 2);
  ASSERT_NE(cache, nullptr);
  append.cache.data = Tensor(cache, DType::kBF16, {kBlocks, kBlockSize, 576});
  ASSERT_STATUS_OK(backend->append(append, {}));
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    std::vector<uint16_t> row(576);
    ASSERT_STATUS_OK(backend->memory().copy_to_host(
        row.data(), static_cast<char*>(cache) + slots[i] * 576 * 2, 576 * 2, {}));
    ASSERT_STATUS_OK(backend->memory().synchronize({}));
    const auto* latent_row = static_cast<const uint16_t*>(latents.view().data) + i * 512;
    const auto* rope_row = static_cast<const uint16_t*>(rope.view().data) + i * 64;
    EXPECT_TRUE(std::equal(latent_row, latent_row + 512, row.begin())) << "slot " << slots[i];
    EXPECT_TRUE(std::equal(rope_row, rope_row + 64, row.begin() + 512)) << "slot " << slots[i];
  }

  // One request whose two cached blocks are the highest ones.
  const std::vector<int32_t> starts{0, 1}, contexts{32};
  const std::vector<int32_t> table{250'000, 233'016};
  RaggedBatch batch;
  batch.query_start_loc = starts;
  batch.context_lens = contexts;
  batch.block_table = {table.data(), 1, 2, 2};
  batch.block_size = kBlockSize;
  const auto plan = make_plan(dims, batch, {}, backend->device_properties());
  ASSERT_STATUS_OK(plan.status());
  const int64_t size_bytes = plan->workspace.total_bytes;
  const Workspace workspace{allocate(size_bytes), size_bytes};
  ASSERT_STATUS_OK(backend->upload(plan.value(), workspace, {}));
  verify::HostTensor weight(DType::kBF16, {256, 512});
  verify::fill_random(weight, random, 0.05f);
  const auto weights = backend->prepare_weights(dims, placement.put(weight));
  ASSERT_STATUS_OK(weights.status());
  ExpandArgs expand;
  expand.plan = &plan.value();
  expand.workspace = workspace;
  expand.weights = weights->get();
  expand.kv_latent = append.kv_latent;
  expand.kv_latent.shape[0] = 1;
  expand.k_rope = append.k_rope;
  expand.k_rope.shape[0] = 1;
  expand.cache = append.cache;
  auto* base = static_cast<char*>(workspace.data);
  expand.latent = Tensor(base + plan->workspace.latent_offset_bytes, DType::kBF16, {33, 576});
  expand.expanded = Tensor(base + plan->workspace.expanded_offset_bytes, DType::kBF16, {33, 1, 256});
  ASSERT_STATUS_OK(backend->expand(expand, {}));
  std::vector<uint16_t> gathered(33 * 576);
  ASSERT_STATUS_OK(backend->memory().copy_to_host(gathered.data(), expand.latent.data,
                                                  static_cast<int64_t>(gathered.size() * 2), {}));
  ASSERT_STATUS_OK(backend->memory().synchronize({}));
  const auto* first = static_cast<const uint16_t*>(latents.view().data);
  EXPECT_TRUE(std::equal(first + 512, first + 1024, gathered.begin()));             // slot 4,000,000
  EXPECT_TRUE(std::equal(first, first + 512, gathered.begin() + (16 + 14) * 576));  // slot 3,728,270
  EXPECT_TRUE(std::equal(first, first + 512, gathered.begin() + 32 * 576));         // the new token
}

// Query, output and LSE rows 2^31 elements and more from the first, as views of wider buffers.
TEST_F(FarApart, StridesTimesRowsPassTwoToThe31) {
  constexpr int64_t kRows = 130;
  constexpr int64_t kStride = int64_t{1} << 24;
  verify::HostTensor keys(DType::kBF16, {kRows, 1, 192});
  verify::HostTensor values(DType::kBF16, {kRows, 1, 128});
  verify::HostTensor queries(DType::kBF16, {kRows, 1, 192});
  verify::Random random(6);
  for (auto* tensor : {&keys, &values, &queries}) verify::fill_random(*tensor, random);
  verify::Placement placement(*backend);
  const std::vector<AttentionSpan> spans{{.q_len = kRows, .k_len = kRows, .causal_offset = 0}};
  AttentionArgs args;
  args.k = placement.put(keys);
  args.v = placement.put(values);
  args.spans = spans;
  args.softmax_scale = 0.1;
  args.workspace.size_bytes = backend->attention_workspace_bytes(args);
  args.workspace.data = allocate(args.workspace.size_bytes);

  args.q = placement.put(queries);
  std::vector<uint16_t> near(kRows * 128), far(kRows * 128);
  args.out = Tensor(allocate(kRows * 128 * 2), DType::kBF16, {kRows, 1, 128});
  ASSERT_STATUS_OK(backend->attention(args, {}));
  ASSERT_STATUS_OK(backend->memory().copy_to_host(near.data(), args.out.data, kRows * 128 * 2, {}));

  auto* wide_q = static_cast<char*>(allocate(kRows * kStride * 2));
  auto* wide_out = static_cast<char*>(allocate(kRows * kStride * 2));
  ASSERT_NE(wide_q, nullptr);
  ASSERT_NE(wide_out, nullptr);
  ASSERT_EQ(cudaMemcpy2D(wide_q, kStride * 2, args.q.data, 192 * 2, 192 * 2, kRows, cudaMemcpyDeviceToDevice),
            cudaSuccess);
  args.q = ConstTensor(wide_q, DType::kBF16, {kRows, 1, 192}, {kStride, 192, 1});
  args.out = Tensor(wide_out, DType::kBF16, {kRows, 1, 128}, {kStride, 128, 1});
  ASSERT_STATUS_OK(backend->attention(args, {}));
  ASSERT_EQ(cudaMemcpy2D(far.data(), 128 * 2, wide_out, kStride * 2, 128 * 2, kRows, cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(near, far);
}

}  // namespace
}  // namespace mlaprefill::sm90
