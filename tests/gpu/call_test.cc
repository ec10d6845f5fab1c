// Attention calls without a plan.
#include <functional>

#include "backend/sm90/metadata.h"
#include "backend/sm90/small_metadata.h"
#include "gpu/device_fixture.h"
#include "plan/kv_splits.h"

namespace mlaprefill::sm90 {
namespace {

/// Equal requests whose new tokens see all their keys.
class AttentionCall : public DeviceTest {
 protected:
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kNew = 40;

  void make_call(int64_t requests, int64_t keys) {
    placement_ = std::make_unique<verify::Placement>(*backend);
    rows_ = requests * kNew;
    verify::HostTensor q(DType::kBF16, {rows_, kHeads, 192});
    verify::HostTensor k(DType::kBF16, {requests * keys, kHeads, 192});
    verify::HostTensor v(DType::kBF16, {requests * keys, kHeads, 128});
    verify::Random random(3);
    for (verify::HostTensor* tensor : {&q, &k, &v}) verify::fill_random(*tensor, random);
    for (int64_t r = 0; r < requests; ++r) {
      spans_.push_back({.q_row = r * kNew, .q_len = kNew, .k_row = r * keys, .k_len = keys});
    }
    args_.q = placement_->put(q);
    args_.k = placement_->put(k);
    args_.v = placement_->put(v);
    args_.out = Tensor(placement_->put_buffer(out_bytes()), DType::kBF16, {rows_, kHeads, 128});
    args_.spans = spans_;
    args_.softmax_scale = 0.07;
    const int64_t size_bytes = backend->attention_workspace_bytes(args_);
    args_.workspace = {placement_->put_buffer(size_bytes), size_bytes};
    ASSERT_STATUS_OK(placement_->status());
  }

  int64_t out_bytes() const { return rows_ * kHeads * 128 * 2; }

  /// The output of `enqueue`, which starts from zeros.
  std::vector<uint16_t> output_of(const std::function<void()>& enqueue) {
    cudaMemsetAsync(args_.out.data, 0, static_cast<size_t>(out_bytes()), stream_.cuda());
    enqueue();
    std::vector<uint16_t> out(static_cast<size_t>(out_bytes()) / 2);
    cudaMemcpyAsync(out.data(), args_.out.data, static_cast<size_t>(out_bytes()), cudaMemcpyDeviceToHost,
                    stream_.cuda());
    EXPECT_EQ(cudaStreamSynchronize(stream_.cuda()), cudaSuccess);
    return out;
  }

  /// Captures the call and expects replays to bring their schedule along.
  void expect_captured() {
    const auto eager = output_of([&] { ASSERT_STATUS_OK(backend->attention(args_, stream_.handle())); });
    ASSERT_EQ(cudaStreamBeginCapture(stream_.cuda(), cudaStreamCaptureModeGlobal), cudaSuccess);
    const Status enqueued = backend->attention(args_, stream_.handle());
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream_.cuda(), &graph), cudaSuccess);
    ASSERT_STATUS_OK(enqueued);
    cudaGraphExec_t executable = nullptr;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    cudaMemset(args_.workspace.data, 0xFF, static_cast<size_t>(args_.workspace.size_bytes));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(output_of([&] { cudaGraphLaunch(executable, stream_.cuda()); }) == eager);
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }

  Stream stream_;
  std::unique_ptr<verify::Placement> placement_;
  std::vector<AttentionSpan> spans_;
  int64_t rows_ = 0;
  AttentionArgs args_;
};

TEST_F(AttentionCall, SmallOnesAreCaptured) {
  make_call(8, 150);
  ASSERT_LE(args_.workspace.size_bytes, kSmallMetadataBytes);
  expect_captured();
}

TEST_F(AttentionCall, SplitKeysAreCaptured) {
  make_call(2, 5000);
  ASSERT_GT(schedule_call(args_, most_kv_splits(backend->device_properties())).kv_splits, 0);
  expect_captured();
}

TEST_F(AttentionCall, LargeOnesAreRefusedInACapture) {
  make_call(200, 150);
  ASSERT_GT(args_.workspace.size_bytes, kSmallMetadataBytes);
  ASSERT_EQ(cudaStreamBeginCapture(stream_.cuda(), cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status refused = backend->attention(args_, stream_.handle());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_.cuda(), &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(text(refused),
            "attention: must have a plan or a schedule of at most 4032 bytes inside a capture, got 6912");
}

}  // namespace
}  // namespace mlaprefill::sm90
