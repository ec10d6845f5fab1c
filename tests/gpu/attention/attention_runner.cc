#include "gpu/attention/attention_runner.h"

#include <vector>

#include "backend/sm90/metadata.h"
#include "backend/sm90/tensor_map.h"

namespace mlaprefill::sm90 {
namespace {

int64_t nope_dim(KernelDims dims) { return dims == KernelDims::k192x128 ? 128 : 192; }
int64_t value_dim(KernelDims dims) { return dims == KernelDims::k192x128 ? 128 : 256; }
constexpr int64_t kRope = 64;

bool encode(TensorMapEncoder encoder, const AttentionCall& call, const DeviceTensor& tensor, int64_t columns,
            int64_t heads, int32_t box_rows, CUtensorMap* map) {
  const TensorMapSource source{tensor.data, columns, heads, tensor.row_stride, tensor.head_stride};
  return encode_ragged(encoder, source, call.element, box_rows, map);
}

}  // namespace

AttentionRunner::AttentionRunner(const AttentionCall& call, std::span<const AttentionSpan> spans,
                                 std::string& error)
    : call_(call) {
  const TensorMapEncoder encoder = find_tensor_map_encoder();
  const int32_t box_rows = key_tile_of(call.dims) / 2;
  const int64_t nope = nope_dim(call.dims);
  if (!encode(encoder, call, call.q, nope + kRope, call.num_heads, kRowsPerWarpgroup, &params_.q_map) ||
      !encode(encoder, call, call.k_nope, nope, call.kv_heads, box_rows, &params_.k_nope_map) ||
      !encode(encoder, call, call.k_rope, kRope, call.rope_per_head ? call.kv_heads : 1, box_rows,
              &params_.k_rope_map) ||
      (!call.out_is_f32 && !encode(encoder, call, call.out, value_dim(call.dims), call.num_heads, kStoreRows,
                                   &params_.out_map)) ||
      !encode(encoder, call, call.v, value_dim(call.dims), call.kv_heads, box_rows, &params_.v_map)) {
    error = "tensor map: refused";
    return;
  }
  AttentionArgs args;
  args.spans = spans;
  args.q.shape[1] = call.num_heads;
  args.k.shape[2] = nope;
  args.v.shape[2] = value_dim(call.dims);
  std::vector<std::byte> metadata(static_cast<size_t>(call_metadata_bound_bytes(args)));
  const auto bytes = static_cast<size_t>(write_call_metadata(args, metadata.data()));
  if (cudaMalloc(&metadata_, bytes) != cudaSuccess) {
    error = "metadata: no memory";
    return;
  }
  cudaMemcpy(metadata_, metadata.data(), bytes, cudaMemcpyHostToDevice);
  auto* base = static_cast<std::byte*>(metadata_);
  auto* record = reinterpret_cast<PassRecord*>(base + pass_record_offset_bytes(0));
  params_.entries = reinterpret_cast<const AttentionEntry*>(base + entries_offset_bytes(1));
  params_.sections = record->sections;
  params_.item_counter = &record->item_counter;

  const auto rows_of = [](const DeviceTensor& tensor) {
    return TensorRows{static_cast<const uint16_t*>(tensor.data), tensor.row_stride, tensor.head_stride};
  };
  params_.q = rows_of(call.q);
  params_.k_nope = rows_of(call.k_nope);
  params_.k_rope = rows_of(call.k_rope);
  params_.v = rows_of(call.v);

  params_.out = call.out.data;
  params_.out_row_stride = call.out.row_stride;
  params_.out_head_stride = call.out.head_stride;
  params_.out_is_f32 = call.out_is_f32;
  params_.lse = call.lse;
  params_.lse_row_stride = call.lse_row_stride;
  params_.lse_head_stride = call.lse_head_stride;
  params_.lse_unit = call.lse_unit;
  params_.state_out = call.state_out;
  params_.state_max = call.state_max;
  params_.state_sum = call.state_sum;
  params_.state_rows = call.state_rows;
  params_.num_heads = call.num_heads;
  params_.kv_heads_per_q_head = static_cast<float>(call.kv_heads) / static_cast<float>(call.num_heads);
  params_.rope_per_head = call.rope_per_head;
  params_.scale = call.scale;

  int device = 0;
  int processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  max_clusters_ = processors / 2;
  const cudaError_t status = cudaDeviceSynchronize();
  if (status != cudaSuccess) error = cudaGetErrorString(status);
}

AttentionRunner::~AttentionRunner() { cudaFree(metadata_); }

cudaError_t AttentionRunner::launch(cudaStream_t stream) const {
  return launch_attention(call_.dims, call_.element, params_, max_clusters_, stream);
}

}  // namespace mlaprefill::sm90
