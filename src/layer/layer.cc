#include "mlaprefill/layer.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "backend/internal.h"
#include "core/error.h"
#include "core/tensor_access.h"

namespace mlaprefill {
namespace {

constexpr uintptr_t kWorkspaceAlignmentBytes = 16;

Status check_dims(const MlaDims& plan, const MlaDims& layer) {
  const auto differ = [](const char* name, auto of_layer, auto of_plan) {
    return invalid("plan.dims.{}: must be the layer's {}, got {}", name, of_layer, of_plan);
  };
  if (plan.num_heads != layer.num_heads) return differ("num_heads", layer.num_heads, plan.num_heads);
  if (plan.kv_lora_rank != layer.kv_lora_rank) {
    return differ("kv_lora_rank", layer.kv_lora_rank, plan.kv_lora_rank);
  }
  if (plan.qk_nope_head_dim != layer.qk_nope_head_dim) {
    return differ("qk_nope_head_dim", layer.qk_nope_head_dim, plan.qk_nope_head_dim);
  }
  if (plan.qk_rope_head_dim != layer.qk_rope_head_dim) {
    return differ("qk_rope_head_dim", layer.qk_rope_head_dim, plan.qk_rope_head_dim);
  }
  if (plan.v_head_dim != layer.v_head_dim) return differ("v_head_dim", layer.v_head_dim, plan.v_head_dim);
  if (plan.softmax_scale != layer.softmax_scale) {
    return differ("softmax_scale", layer.softmax_scale, plan.softmax_scale);
  }
  return {};
}

Status check_workspace(const Plan& plan, const Workspace& workspace) {
  if (workspace.size_bytes < plan.workspace.total_bytes) {
    return error(StatusCode::kWorkspaceTooSmall, "workspace: must have {} bytes, got {}",
                 plan.workspace.total_bytes, workspace.size_bytes);
  }
  if (plan.workspace.total_bytes == 0) return {};
  if (workspace.data == nullptr) return invalid("workspace: data must not be null, got null");
  if (const auto address = reinterpret_cast<uintptr_t>(workspace.data);
      address % kWorkspaceAlignmentBytes != 0) {
    return invalid("workspace: data must be aligned to {} bytes, got address {:#x}", kWorkspaceAlignmentBytes,
                   address);
  }
  return {};
}

// Views of the caller's workspace, by the plan's layout.
class WorkspaceViews {
 public:
  WorkspaceViews(const Plan& plan, const Workspace& workspace)
      : plan_(plan), base_(static_cast<std::byte*>(workspace.data)) {}

  // A bounded plan launches every pass with the rows of the bound (PlanOptions::bounds).
  int64_t rows(const Pass& pass) const {
    return plan_.options.bounds.has_value() ? plan_.options.workspace_tokens : pass.rows;
  }
  Tensor latent(const Pass& pass) const {
    return Tensor(at(plan_.workspace.latent_offset_bytes), plan_.options.working_dtype,
                  {rows(pass), plan_.dims.latent_dim()});
  }
  Tensor expanded(const Pass& pass) const {
    return Tensor(at(plan_.workspace.expanded_offset_bytes), plan_.options.working_dtype,
                  {rows(pass), plan_.dims.num_heads, plan_.dims.expanded_head_dim()});
  }
  AttentionState state() const {
    return {static_cast<float*>(at(plan_.workspace.state_out_offset_bytes)),
            static_cast<float*>(at(plan_.workspace.state_max_offset_bytes)),
            static_cast<float*>(at(plan_.workspace.state_sum_offset_bytes))};
  }

 private:
  void* at(int64_t offset_bytes) const { return base_ == nullptr ? nullptr : base_ + offset_bytes; }

  const Plan& plan_;
  std::byte* base_;
};

// The pass's spans as attention sees them. Position context_len + i sees every key at or before it, so the
// same offset serves context, new and joint passes.
void set_attention_spans(const Plan& plan, const Pass& pass, std::vector<AttentionSpan>& spans) {
  spans.clear();
  for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
    const Span& span = plan.spans[static_cast<size_t>(s)];
    const auto r = static_cast<size_t>(span.request);
    if (plan.query_lens[r] == 0 || span.length() == 0) continue;
    spans.push_back({.q_row = plan.query_start_loc[r],
                     .q_len = plan.query_lens[r],
                     .k_row = span.row_begin,
                     .k_len = span.length(),
                     .causal_offset = plan.context_lens[r] - span.key_begin,
                     .resume = !span.first,
                     .store_state = !span.last});
  }
}

}  // namespace

Result<MlaLayer> MlaLayer::create(const Backend& backend, const MlaDims& dims, ConstTensor kv_b_proj) {
  auto weights = backend.prepare_weights(dims, kv_b_proj);
  if (!weights.ok()) return weights.status();
  return MlaLayer(backend, dims, std::move(weights).value());
}

LayerPath MlaLayer::path() const {
  return backend_->has_fused_layer() ? LayerPath::kFused : LayerPath::kComposed;
}

Status MlaLayer::run(const Plan& plan, const LayerTensors& tensors, Workspace workspace, LayerPath wanted,
                     Stream stream) const {
  MLAPREFILL_RETURN_IF_ERROR(check_dims(plan.dims, dims_));
  if (tensors.q.dtype != plan.options.working_dtype) {
    return error(StatusCode::kUnsupported, "q: dtype must be the plan's working dtype {}, got {}",
                 to_string(plan.options.working_dtype), to_string(tensors.q.dtype));
  }
  if (wanted == LayerPath::kAuto) wanted = path();
  const FusedLayerArgs layer_args{&plan, weights_.get(), tensors};
  if (wanted == LayerPath::kFused) {
    if (!backend_->has_fused_layer()) {
      return error(StatusCode::kUnsupported, "path: must be composed for backend {}, got fused",
                   backend_->name());
    }
    return backend_->fused_layer(layer_args, stream);
  }

  MLAPREFILL_RETURN_IF_ERROR(validate(layer_args));
  MLAPREFILL_RETURN_IF_ERROR(check_workspace(plan, workspace));
  const WorkspaceViews views(plan, workspace);
  std::vector<AttentionSpan> spans;
  for (size_t i = 0; i < plan.passes.size(); ++i) {
    const Pass& pass = plan.passes[i];
    ExpandArgs expand;
    expand.plan = &plan;
    expand.pass = static_cast<int64_t>(i);
    expand.workspace = workspace;
    expand.weights = weights_.get();
    expand.kv_latent = tensors.kv_latent;
    expand.k_rope = tensors.k_rope;
    expand.cache = tensors.cache;
    expand.latent = views.latent(pass);
    expand.expanded = views.expanded(pass);
    MLAPREFILL_RETURN_IF_ERROR(backend_->expand(expand, stream));

    if (!backend_->attends_by_upload()) set_attention_spans(plan, pass, spans);
    AttentionArgs attention;
    attention.q = tensors.q;
    attention.k = slice_last<const void*>(expand.expanded, 0, dims_.qk_nope_head_dim);
    attention.k_rope = slice_last<const void*>(expand.latent, dims_.kv_lora_rank, dims_.qk_rope_head_dim);
    attention.v = slice_last<const void*>(expand.expanded, dims_.qk_nope_head_dim, dims_.v_head_dim);
    attention.spans = spans;
    attention.softmax_scale = dims_.softmax_scale;
    attention.out = tensors.out;
    attention.lse = tensors.lse;
    attention.state = views.state();
    attention.invariant = plan.options.invariant;
    attention.plan = &plan;
    attention.pass = expand.pass;
    attention.workspace = workspace;
    MLAPREFILL_RETURN_IF_ERROR(backend_->attention(attention, stream));
  }
  return {};
}

}  // namespace mlaprefill
