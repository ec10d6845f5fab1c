// The C ABI: attention, merge, append, expand and the layer.
#include "c_api/abi.h"
#include "c_api/convert.h"

using namespace mlaprefill;
using namespace mlaprefill::c_api;

namespace {

const Plan* plan_of(const mlaprefill_plan* plan) { return plan == nullptr ? nullptr : &plan->plan; }

Workspace workspace_of(const mlaprefill_workspace& workspace) {
  return {workspace.data, workspace.size_bytes};
}

/// A converted attention call; the arguments point into the spans beside them.
struct AttentionCall {
  std::vector<AttentionSpan> spans;
  AttentionArgs args;
};

Status convert_call(const mlaprefill_attention_args* from, AttentionCall& call) {
  mlaprefill_attention_args c = MLAPREFILL_ATTENTION_ARGS_INIT;
  MLAPREFILL_RETURN_IF_ERROR(read_struct("args", from, c));
  if (c.num_spans < 0) return invalid("num_spans: must be >= 0, got {}", c.num_spans);
  if (c.num_spans > 0) MLAPREFILL_RETURN_IF_ERROR(require(c.spans, "spans"));
  call.spans.reserve(static_cast<size_t>(c.num_spans));
  for (int64_t i = 0; i < c.num_spans; ++i) call.spans.push_back(converted(c.spans[i]));
  AttentionArgs& args = call.args;
  MLAPREFILL_RETURN_IF_ERROR(convert("q", c.q, args.q));
  MLAPREFILL_RETURN_IF_ERROR(convert("k", c.k, args.k));
  MLAPREFILL_RETURN_IF_ERROR(convert("k_rope", c.k_rope, args.k_rope));
  MLAPREFILL_RETURN_IF_ERROR(convert("v", c.v, args.v));
  MLAPREFILL_RETURN_IF_ERROR(convert("out", c.out, args.out));
  MLAPREFILL_RETURN_IF_ERROR(convert("lse", c.lse, args.lse));
  args.spans = call.spans;
  args.softmax_scale = c.softmax_scale;
  args.state = {.out = c.state_out, .max = c.state_max, .sum = c.state_sum};
  args.invariant = c.invariant != 0;
  args.plan = plan_of(c.plan);
  args.pass = c.pass;
  args.workspace = workspace_of(c.workspace);
  return {};
}

}  // namespace

mlaprefill_status mlaprefill_upload(const mlaprefill_backend* backend, const mlaprefill_plan* plan,
                                    mlaprefill_workspace workspace, void* stream, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    MLAPREFILL_RETURN_IF_ERROR(require(plan, "plan"));
    return backend->backend->upload(plan->plan, workspace_of(workspace), Stream{stream});
  });
}

mlaprefill_status mlaprefill_make_attention_spans(const int32_t* cu_seqlens_q, const int32_t* cu_seqlens_k,
                                                  int64_t num_requests, int32_t causal, int64_t q_rows,
                                                  int64_t k_rows, mlaprefill_attention_span* spans,
                                                  mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    if (num_requests < 0) return invalid("num_requests: must be >= 0, got {}", num_requests);
    MLAPREFILL_RETURN_IF_ERROR(require(cu_seqlens_q, "cu_seqlens_q"));
    MLAPREFILL_RETURN_IF_ERROR(require(cu_seqlens_k, "cu_seqlens_k"));
    if (num_requests > 0) MLAPREFILL_RETURN_IF_ERROR(require(spans, "spans"));
    const auto lengths = static_cast<size_t>(num_requests) + 1;
    const Result<std::vector<AttentionSpan>> made =
        make_attention_spans({cu_seqlens_q, lengths}, {cu_seqlens_k, lengths}, causal != 0, q_rows, k_rows);
    if (!made.ok()) return made.status();
    for (const AttentionSpan& span : made.value()) {
      *spans++ = {.q_row = span.q_row,
                  .q_len = span.q_len,
                  .k_row = span.k_row,
                  .k_len = span.k_len,
                  .causal_offset = span.causal_offset,
                  .resume = span.resume,
                  .store_state = span.store_state};
    }
    return {};
  });
}

mlaprefill_status mlaprefill_attention(const mlaprefill_backend* backend,
                                       const mlaprefill_attention_args* args, void* stream,
                                       mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    AttentionCall call;
    MLAPREFILL_RETURN_IF_ERROR(convert_call(args, call));
    return backend->backend->attention(call.args, Stream{stream});
  });
}

mlaprefill_status mlaprefill_attention_workspace_bytes(const mlaprefill_backend* backend,
                                                       const mlaprefill_attention_args* args,
                                                       int64_t* size_bytes, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    MLAPREFILL_RETURN_IF_ERROR(require(size_bytes, "size_bytes"));
    AttentionCall call;
    MLAPREFILL_RETURN_IF_ERROR(convert_call(args, call));
    *size_bytes = backend->backend->attention_workspace_bytes(call.args);
    return {};
  });
}

mlaprefill_status mlaprefill_merge(const mlaprefill_backend* backend, const mlaprefill_partial* partials,
                                   int64_t num_partials, const mlaprefill_tensor* out,
                                   const mlaprefill_lse* lse, void* stream, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    MLAPREFILL_RETURN_IF_ERROR(require(out, "out"));
    if (num_partials < 0) return invalid("num_partials: must be >= 0, got {}", num_partials);
    if (num_partials > 0) MLAPREFILL_RETURN_IF_ERROR(require(partials, "partials"));
    std::vector<PartialAttention> known(static_cast<size_t>(num_partials));
    for (size_t i = 0; i < known.size(); ++i) {
      LseView partial_lse;
      MLAPREFILL_RETURN_IF_ERROR(convert(fmt::format("partials[{}].out", i), partials[i].out, known[i].out));
      MLAPREFILL_RETURN_IF_ERROR(convert(fmt::format("partials[{}].lse", i), partials[i].lse, partial_lse));
      known[i].lse = partial_lse;
    }
    MergeArgs args;
    args.partials = known;
    MLAPREFILL_RETURN_IF_ERROR(convert("out", *out, args.out));
    if (lse != nullptr) MLAPREFILL_RETURN_IF_ERROR(convert("lse", *lse, args.lse));
    return backend->backend->merge(args, Stream{stream});
  });
}

mlaprefill_status mlaprefill_append(const mlaprefill_backend* backend, const mlaprefill_tensor* kv_latent,
                                    const mlaprefill_tensor* k_rope, const int64_t* slot_mapping,
                                    const mlaprefill_kv_cache* cache, void* stream, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    MLAPREFILL_RETURN_IF_ERROR(require(kv_latent, "kv_latent"));
    MLAPREFILL_RETURN_IF_ERROR(require(k_rope, "k_rope"));
    MLAPREFILL_RETURN_IF_ERROR(require(cache, "cache"));
    AppendArgs args;
    MLAPREFILL_RETURN_IF_ERROR(convert("kv_latent", *kv_latent, args.kv_latent));
    MLAPREFILL_RETURN_IF_ERROR(convert("k_rope", *k_rope, args.k_rope));
    MLAPREFILL_RETURN_IF_ERROR(convert("cache", *cache, args.cache));
    args.slot_mapping = slot_mapping;
    return backend->backend->append(args, Stream{stream});
  });
}

mlaprefill_status mlaprefill_weights_create(const mlaprefill_backend* backend, const mlaprefill_dims* dims,
                                            const mlaprefill_tensor* kv_b_proj, mlaprefill_weights** weights,
                                            mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(weights, "weights"));
    *weights = nullptr;
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    MLAPREFILL_RETURN_IF_ERROR(require(kv_b_proj, "kv_b_proj"));
    MlaDims known_dims;
    ConstTensor tensor;
    MLAPREFILL_RETURN_IF_ERROR(convert("dims", dims, known_dims));
    MLAPREFILL_RETURN_IF_ERROR(convert("kv_b_proj", *kv_b_proj, tensor));
    Result<std::shared_ptr<const LayerWeights>> prepared =
        backend->backend->prepare_weights(known_dims, tensor);
    if (!prepared.ok()) return prepared.status();
    *weights = new mlaprefill_weights{backend->backend, std::move(prepared).value()};
    return {};
  });
}

void mlaprefill_weights_destroy(mlaprefill_weights* weights) { delete weights; }

mlaprefill_status mlaprefill_expand(const mlaprefill_backend* backend, const mlaprefill_expand_args* args,
                                    void* stream, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    mlaprefill_expand_args c = MLAPREFILL_EXPAND_ARGS_INIT;
    MLAPREFILL_RETURN_IF_ERROR(read_struct("args", args, c));
    MLAPREFILL_RETURN_IF_ERROR(require(c.plan, "plan"));
    MLAPREFILL_RETURN_IF_ERROR(require(c.weights, "weights"));
    ExpandArgs known;
    known.plan = &c.plan->plan;
    known.pass = c.pass;
    known.workspace = workspace_of(c.workspace);
    known.weights = c.weights->weights.get();
    MLAPREFILL_RETURN_IF_ERROR(convert("kv_latent", c.kv_latent, known.kv_latent));
    MLAPREFILL_RETURN_IF_ERROR(convert("k_rope", c.k_rope, known.k_rope));
    MLAPREFILL_RETURN_IF_ERROR(convert("cache", c.cache, known.cache));
    MLAPREFILL_RETURN_IF_ERROR(convert("latent", c.latent, known.latent));
    MLAPREFILL_RETURN_IF_ERROR(convert("expanded", c.expanded, known.expanded));
    return backend->backend->expand(known, Stream{stream});
  });
}

mlaprefill_status mlaprefill_layer_create(const mlaprefill_backend* backend, const mlaprefill_dims* dims,
                                          const mlaprefill_tensor* kv_b_proj, mlaprefill_layer** layer,
                                          mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(layer, "layer"));
    *layer = nullptr;
    MLAPREFILL_RETURN_IF_ERROR(require(backend, "backend"));
    MLAPREFILL_RETURN_IF_ERROR(require(kv_b_proj, "kv_b_proj"));
    MlaDims known_dims;
    ConstTensor tensor;
    MLAPREFILL_RETURN_IF_ERROR(convert("dims", dims, known_dims));
    MLAPREFILL_RETURN_IF_ERROR(convert("kv_b_proj", *kv_b_proj, tensor));
    Result<MlaLayer> created = MlaLayer::create(*backend->backend, known_dims, tensor);
    if (!created.ok()) return created.status();
    *layer = new mlaprefill_layer{backend->backend, std::move(created).value()};
    return {};
  });
}

void mlaprefill_layer_destroy(mlaprefill_layer* layer) { delete layer; }

mlaprefill_status mlaprefill_layer_get_path(const mlaprefill_layer* layer, int32_t* path,
                                            mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(layer, "layer"));
    MLAPREFILL_RETURN_IF_ERROR(require(path, "path"));
    *path = static_cast<int32_t>(layer->layer.path());
    return {};
  });
}

mlaprefill_status mlaprefill_layer_run(const mlaprefill_layer* layer, const mlaprefill_plan* plan,
                                       const mlaprefill_layer_args* args, void* stream,
                                       mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(layer, "layer"));
    MLAPREFILL_RETURN_IF_ERROR(require(plan, "plan"));
    mlaprefill_layer_args c = MLAPREFILL_LAYER_ARGS_INIT;
    MLAPREFILL_RETURN_IF_ERROR(read_struct("args", args, c));
    MLAPREFILL_RETURN_IF_ERROR(require_in_range(c.path, 3, "path"));
    LayerTensors tensors;
    MLAPREFILL_RETURN_IF_ERROR(convert("q", c.q, tensors.q));
    MLAPREFILL_RETURN_IF_ERROR(convert("kv_latent", c.kv_latent, tensors.kv_latent));
    MLAPREFILL_RETURN_IF_ERROR(convert("k_rope", c.k_rope, tensors.k_rope));
    MLAPREFILL_RETURN_IF_ERROR(convert("cache", c.cache, tensors.cache));
    MLAPREFILL_RETURN_IF_ERROR(convert("out", c.out, tensors.out));
    MLAPREFILL_RETURN_IF_ERROR(convert("lse", c.lse, tensors.lse));
    return layer->layer.run(plan->plan, tensors, workspace_of(c.workspace), static_cast<LayerPath>(c.path),
                            Stream{stream});
  });
}
