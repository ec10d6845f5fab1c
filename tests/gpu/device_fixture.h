// What the device tests share: the opened backend, a stream, and a layer's tensors on the device.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "mlaprefill/layer.h"
#include "verify/host_tensor.h"

namespace mlaprefill::sm90 {

inline std::string text(const Status& status) { return status.ok() ? "" : status.message(); }

#define ASSERT_STATUS_OK(expression) ASSERT_EQ(::mlaprefill::sm90::text(expression), "")

class Stream {
 public:
  Stream() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t cuda() const { return stream_; }
  mlaprefill::Stream handle() const { return {stream_}; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Skips every test where the backend cannot be opened.
class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_backend("sm90");
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    backend = std::move(opened).value();
  }
  void TearDown() override {
    if (backend == nullptr) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  std::unique_ptr<Backend> backend;
};

/// DeepSeek-V3 dims with so many heads.
inline MlaDims deepseek_dims(int32_t heads) {
  return {.num_heads = heads,
          .kv_lora_rank = 512,
          .qk_nope_head_dim = 128,
          .qk_rope_head_dim = 64,
          .v_head_dim = 128,
          .softmax_scale = 0.1352337788608801};
}

struct Request {
  int32_t queries;
  int32_t context;
};

/// A batch with its own block table: request r's blocks are consecutive, in an order that depends on the
/// seed.
class Batch {
 public:
  Batch(const std::vector<Request>& requests, int32_t block_size, int32_t num_blocks, uint64_t seed = 1);

  RaggedBatch ragged() const;
  int64_t query_rows() const { return query_start_loc_.back(); }
  const std::vector<Request>& requests() const { return requests_; }

 private:
  std::vector<Request> requests_;
  std::vector<int32_t> query_start_loc_{0};
  std::vector<int32_t> context_lens_;
  std::vector<int32_t> block_table_;
  int64_t columns_ = 0;
  int32_t block_size_;
};

/// Results of a run, as bytes.
struct Bytes {
  std::vector<uint16_t> out;
  std::vector<uint32_t> lse;
  bool operator==(const Bytes&) const = default;
};

/// Random device tensors of a layer, with room for `rows` query rows and `blocks` cache blocks, and a
/// workspace.
class DeviceLayer {
 public:
  DeviceLayer(const Backend& backend, const MlaDims& dims, int64_t rows, int32_t block_size, int32_t blocks,
              int64_t workspace_bytes, uint64_t seed = 7);

  /// Views of the first `rows` rows.
  LayerTensors tensors(int64_t rows) const;
  Workspace workspace() const { return workspace_; }
  const MlaLayer& layer() const { return *layer_; }

  void poison_outputs(cudaStream_t stream);
  void poison_workspace(cudaStream_t stream);
  /// Waits for the stream.
  Bytes fetch(int64_t rows, cudaStream_t stream) const;
  Status status() const { return status_; }

  verify::HostTensor q, kv_latent, k_rope, cache, kv_b_proj;

 private:
  MlaDims dims_;
  int64_t rows_;
  verify::Placement placement_;
  Tensor device_q_, device_latent_, device_rope_, device_cache_, device_weight_;
  void* out_ = nullptr;
  float* lse_ = nullptr;
  Workspace workspace_;
  std::unique_ptr<MlaLayer> layer_;
  Status status_;
};

}  // namespace mlaprefill::sm90
