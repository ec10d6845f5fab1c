#include "io/attend_run.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include "core/error.h"
#include "mlaprefill/layer.h"

namespace mlaprefill {
namespace {

// Tensors in the memory a backend works on: those given where that is host memory, else copies.
class BackendTensors {
 public:
  explicit BackendTensors(const Backend& backend) : memory_(backend.memory()) {}
  BackendTensors(const BackendTensors&) = delete;
  BackendTensors& operator=(const BackendTensors&) = delete;
  ~BackendTensors() {
    for (void* data : owned_) memory_.release(data);
  }

  Result<void*> allocate(int64_t size_bytes) {
    auto data = memory_.allocate(size_bytes);
    if (data.ok()) owned_.push_back(data.value());
    return data;
  }

  Status place(const OwnedTensor& tensor, Tensor& view) {
    view = tensor.view;
    if (on_host() || !tensor.present()) return {};
    auto data = allocate(tensor.memory.size_bytes());
    if (!data.ok()) return data.status();
    view.data = data.value();
    return memory_.copy_from_host(view.data, tensor.memory.data(), tensor.memory.size_bytes(), {});
  }

  Status place(const OwnedTensor& tensor, ConstTensor& view) {
    Tensor placed;
    MLAPREFILL_RETURN_IF_ERROR(place(tensor, placed));
    view = placed;
    return {};
  }

  // Brings an output back, and waits for it.
  Status fetch(const Tensor& view, OwnedTensor& tensor) {
    if (on_host()) return {};
    MLAPREFILL_RETURN_IF_ERROR(
        memory_.copy_to_host(tensor.memory.data(), view.data, tensor.memory.size_bytes(), {}));
    return memory_.synchronize({});
  }

 private:
  bool on_host() const { return &memory_ == &host_memory(); }

  const Memory& memory_;
  std::vector<void*> owned_;
};

// Output tensors on the host, zeroed, and their places in the backend's memory.
struct Outputs {
  AttendOutput host;
  Tensor out;
  Tensor lse;

  Status allocate(BackendTensors& tensors, const OwnedTensor& q, int64_t v_head_dim) {
    const int64_t rows = q.extent(0);
    const int64_t heads = q.extent(1);
    const std::array<int64_t, 3> out_shape{rows, heads, v_head_dim};
    const std::array<int64_t, 2> lse_shape{heads, rows};
    MLAPREFILL_RETURN_IF_ERROR(allocate_zeroed(q.view.dtype, out_shape, host.out));
    MLAPREFILL_RETURN_IF_ERROR(allocate_zeroed(DType::kF32, lse_shape, host.lse));
    MLAPREFILL_RETURN_IF_ERROR(tensors.place(host.out, out));
    return tensors.place(host.lse, lse);
  }

  LseView lse_view() const { return {static_cast<float*>(lse.data), lse.shape[1], 1, LseBase::kNatural}; }

  Result<AttendOutput> fetch(BackendTensors& tensors) {
    MLAPREFILL_RETURN_IF_ERROR(tensors.fetch(out, host.out));
    MLAPREFILL_RETURN_IF_ERROR(tensors.fetch(lse, host.lse));
    return std::move(host);
  }

 private:
  static Status allocate_zeroed(DType dtype, std::span<const int64_t> shape, OwnedTensor& target) {
    auto tensor = OwnedTensor::allocate(dtype, shape);
    if (!tensor.ok()) return tensor.status();
    target = std::move(tensor).value();
    std::ranges::fill(target.memory.bytes(), std::byte{0});
    return {};
  }
};

Status check_support(const LayerCase& layer, const Backend& backend) {
  SupportQuery query;
  query.dims = layer.dims;
  query.query_dtype = layer.q.view.dtype;
  query.output_dtype = layer.q.view.dtype;
  query.weight_dtype = layer.kv_b_proj.view.dtype;
  query.needs_context = layer.kv_cache.present();
  query.cache_dtype = query.needs_context ? layer.kv_cache.view.dtype : layer.q.view.dtype;
  const std::vector<std::string> reasons = backend.supports(query);
  if (reasons.empty()) return {};
  return error(StatusCode::kUnsupported, "backend {}: must support the case, got {}", backend.name(),
               fmt::join(reasons, "; "));
}

RaggedBatch batch_of(const LayerCase& layer) {
  RaggedBatch batch;
  batch.query_start_loc = layer.query_start_loc;
  batch.context_lens = layer.context_lens;
  batch.block_size = 1;
  if (layer.kv_cache.present()) {
    batch.num_cache_blocks = layer.kv_cache.extent(0);
    batch.block_size = static_cast<int32_t>(layer.kv_cache.extent(1));
    const auto rows = static_cast<int64_t>(layer.context_lens.size());
    if (!layer.block_table.empty()) {
      batch.block_table = {layer.block_table.data(), rows, layer.block_table_cols, layer.block_table_cols};
    }
  }
  return batch;
}

Result<AttendOutput> run(const LayerCase& layer, const Backend& backend, const AttendOptions& options) {
  MLAPREFILL_RETURN_IF_ERROR(check_support(layer, backend));
  PlanOptions plan_options;
  plan_options.mode = options.mode;
  plan_options.workspace_tokens = options.workspace_tokens;
  plan_options.strict = options.strict;
  plan_options.invariant = options.invariant;
  plan_options.working_dtype = layer.q.view.dtype;
  const auto plan = make_plan(layer.dims, batch_of(layer), plan_options, backend.device_properties());
  if (!plan.ok()) return plan.status();

  BackendTensors tensors(backend);
  Outputs outputs;
  MLAPREFILL_RETURN_IF_ERROR(outputs.allocate(tensors, layer.q, layer.dims.v_head_dim));
  LayerTensors args;
  ConstTensor kv_b_proj;
  MLAPREFILL_RETURN_IF_ERROR(tensors.place(layer.q, args.q));
  MLAPREFILL_RETURN_IF_ERROR(tensors.place(layer.kv_latent, args.kv_latent));
  MLAPREFILL_RETURN_IF_ERROR(tensors.place(layer.k_rope, args.k_rope));
  MLAPREFILL_RETURN_IF_ERROR(tensors.place(layer.kv_cache, args.cache.data));
  MLAPREFILL_RETURN_IF_ERROR(tensors.place(layer.kv_b_proj, kv_b_proj));
  args.cache.scale = layer.kv_scale;
  args.out = outputs.out;
  args.lse = outputs.lse_view();

  const auto mla_layer = MlaLayer::create(backend, layer.dims, kv_b_proj);
  if (!mla_layer.ok()) return mla_layer.status();
  const LayerPath path = options.composed ? LayerPath::kComposed : mla_layer->path();
  Workspace workspace;
  if (path == LayerPath::kComposed) {
    const auto data = tensors.allocate(plan->workspace.total_bytes);
    if (!data.ok()) return data.status();
    workspace = {data.value(), plan->workspace.total_bytes};
  }
  MLAPREFILL_RETURN_IF_ERROR(backend.upload(plan.value(), workspace, {}));
  MLAPREFILL_RETURN_IF_ERROR(mla_layer->run(plan.value(), args, workspace, path));
  return outputs.fetch(tensors);
}

// `strict` means what it means for a plan: all requests have a query and a key, or none has.
Status refuse_mixed_requests(const PlainCase& plain) {
  std::vector<size_t> inactive;
  const size_t requests = plain.cu_seqlens_q.size() - 1;
  for (size_t r = 0; r < requests; ++r) {
    const bool has_query = plain.cu_seqlens_q[r + 1] > plain.cu_seqlens_q[r];
    const bool has_key = plain.cu_seqlens_k[r + 1] > plain.cu_seqlens_k[r];
    if (!has_query || !has_key) inactive.push_back(r);
  }
  if (inactive.empty() || inactive.size() == requests) return {};
  constexpr size_t kShown = 8;
  const std::span<const size_t> shown(inactive.data(), std::min(inactive.size(), kShown));
  return error(StatusCode::kInactiveRows,
               "requests: strict requires a query and a key in every one or in none, got {} of {} inactive: "
               "[{}{}]",
               inactive.size(), requests, fmt::join(shown, ", "), inactive.size() > kShown ? ", ..." : "");
}

Result<AttendOutput> run(const PlainCase& plain, const Backend& backend, const AttendOptions& options) {
  const auto spans = make_attention_spans(plain.cu_seqlens_q, plain.cu_seqlens_k, plain.causal,
                                          plain.q.extent(0), plain.k.extent(0));
  if (!spans.ok()) return spans.status();
  if (options.strict) MLAPREFILL_RETURN_IF_ERROR(refuse_mixed_requests(plain));
  BackendTensors tensors(backend);
  Outputs outputs;
  MLAPREFILL_RETURN_IF_ERROR(outputs.allocate(tensors, plain.q, plain.v.extent(2)));
  AttentionArgs args;
  MLAPREFILL_RETURN_IF_ERROR(tensors.place(plain.q, args.q));
  MLAPREFILL_RETURN_IF_ERROR(tensors.place(plain.k, args.k));
  MLAPREFILL_RETURN_IF_ERROR(tensors.place(plain.v, args.v));
  args.spans = spans.value();
  args.softmax_scale = plain.softmax_scale;
  args.out = outputs.out;
  args.lse = outputs.lse_view();
  args.invariant = options.invariant;
  const int64_t workspace_bytes = backend.attention_workspace_bytes(args);
  const auto workspace = tensors.allocate(workspace_bytes);
  if (!workspace.ok()) return workspace.status();
  args.workspace = {workspace.value(), workspace_bytes};
  MLAPREFILL_RETURN_IF_ERROR(backend.attention(args, {}));
  return outputs.fetch(tensors);
}

}  // namespace

Result<AttendOutput> run_attend_case(const AttendCase& attend_case, const Backend& backend,
                                     const AttendOptions& options) {
  return std::visit([&](const auto& value) { return run(value, backend, options); }, attend_case);
}

}  // namespace mlaprefill
