#include "gpu/device_fixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace mlaprefill::sm90 {

Batch::Batch(const std::vector<Request>& requests, int32_t block_size, int32_t num_blocks, uint64_t seed)
    : requests_(requests), block_size_(block_size) {
  for (const Request& request : requests) {
    query_start_loc_.push_back(query_start_loc_.back() + request.queries);
    context_lens_.push_back(request.context);
    columns_ = std::max<int64_t>(columns_, (request.context + block_size - 1) / block_size);
  }
  std::vector<int32_t> ids(static_cast<size_t>(num_blocks));
  std::iota(ids.begin(), ids.end(), 0);
  verify::Random random(seed);
  for (size_t i = ids.size(); i > 1; --i) {
    std::swap(ids[i - 1], ids[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  block_table_.assign(requests.size() * static_cast<size_t>(columns_), -1);
  size_t used = 0;
  for (size_t r = 0; r < requests.size(); ++r) {
    const int64_t blocks = (requests[r].context + block_size - 1) / block_size;
    for (int64_t i = 0; i < blocks; ++i) {
      block_table_[r * static_cast<size_t>(columns_) + static_cast<size_t>(i)] = ids.at(used++);
    }
  }
}

RaggedBatch Batch::ragged() const {
  RaggedBatch batch;
  batch.query_start_loc = query_start_loc_;
  batch.context_lens = context_lens_;
  batch.block_table = {block_table_.data(), static_cast<int64_t>(requests_.size()), columns_, columns_};
  batch.block_size = block_size_;
  return batch;
}

DeviceLayer::DeviceLayer(const Backend& backend, const MlaDims& dims, int64_t rows, int32_t block_size,
                         int32_t blocks, int64_t workspace_bytes, uint64_t seed)
    : q(DType::kBF16, {rows, dims.num_heads, dims.qk_head_dim()}),
      kv_latent(DType::kBF16, {rows, dims.kv_lora_rank}),
      k_rope(DType::kBF16, {rows, dims.qk_rope_head_dim}),
      cache(DType::kBF16, {blocks, block_size, dims.latent_dim()}),
      kv_b_proj(DType::kBF16, {dims.num_heads * dims.expanded_head_dim(), dims.kv_lora_rank}),
      dims_(dims),
      rows_(rows),
      placement_(backend) {
  verify::Random random(seed);
  for (verify::HostTensor* tensor : {&q, &kv_latent, &k_rope, &cache}) verify::fill_random(*tensor, random);
  verify::fill_random(kv_b_proj, random, 1.0f / std::sqrt(static_cast<float>(dims.kv_lora_rank)));
  device_q_ = placement_.put(q);
  device_latent_ = placement_.put(kv_latent);
  device_rope_ = placement_.put(k_rope);
  device_cache_ = placement_.put(cache);
  device_weight_ = placement_.put(kv_b_proj);
  out_ = placement_.put_buffer(rows * dims.num_heads * dims.v_head_dim * 2);
  lse_ = static_cast<float*>(placement_.put_buffer(rows * dims.num_heads * 4));
  workspace_ = {placement_.put_buffer(workspace_bytes), workspace_bytes};
  auto layer = MlaLayer::create(backend, dims, device_weight_);
  status_ = placement_.status().ok() ? layer.status() : placement_.status();
  if (layer.ok()) layer_ = std::make_unique<MlaLayer>(std::move(layer).value());
}

LayerTensors DeviceLayer::tensors(int64_t rows) const {
  const auto first_rows = [rows](Tensor tensor) {
    tensor.shape[0] = rows;
    return tensor;
  };
  LayerTensors tensors;
  tensors.q = first_rows(device_q_);
  tensors.kv_latent = first_rows(device_latent_);
  tensors.k_rope = first_rows(device_rope_);
  tensors.cache = {device_cache_, 1.0f};
  tensors.out = Tensor(out_, DType::kBF16, {rows, dims_.num_heads, dims_.v_head_dim});
  tensors.lse = {lse_, rows_, 1, LseBase::kNatural};
  return tensors;
}

void DeviceLayer::poison_outputs(cudaStream_t stream) {
  cudaMemsetAsync(out_, 0xFF, static_cast<size_t>(rows_ * dims_.num_heads * dims_.v_head_dim * 2), stream);
  cudaMemsetAsync(lse_, 0xFF, static_cast<size_t>(rows_ * dims_.num_heads * 4), stream);
}

void DeviceLayer::poison_workspace(cudaStream_t stream) {
  cudaMemsetAsync(workspace_.data, 0xFF, static_cast<size_t>(workspace_.size_bytes), stream);
}

Bytes DeviceLayer::fetch(int64_t rows, cudaStream_t stream) const {
  Bytes bytes;
  bytes.out.resize(static_cast<size_t>(rows * dims_.num_heads * dims_.v_head_dim));
  std::vector<uint32_t> all(static_cast<size_t>(rows_ * dims_.num_heads));
  cudaMemcpyAsync(bytes.out.data(), out_, bytes.out.size() * 2, cudaMemcpyDeviceToHost, stream);
  cudaMemcpyAsync(all.data(), lse_, all.size() * 4, cudaMemcpyDeviceToHost, stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  for (int64_t head = 0; head < dims_.num_heads; ++head) {
    const auto begin = all.begin() + head * rows_;
    bytes.lse.insert(bytes.lse.end(), begin, begin + rows);
  }
  return bytes;
}

}  // namespace mlaprefill::sm90
