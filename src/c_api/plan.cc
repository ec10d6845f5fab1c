// The C ABI: status, dims, tensors and plans.
#include "c_api/abi.h"
#include "c_api/convert.h"
#include "mlaprefill/version.h"

using namespace mlaprefill;
using namespace mlaprefill::c_api;

static_assert(static_cast<int32_t>(DType::kI64) == MLAPREFILL_I64);
static_assert(static_cast<int32_t>(PlanMode::kEvenSplit) == MLAPREFILL_MODE_EVEN_SPLIT);
static_assert(static_cast<int32_t>(PassKind::kJoint) == MLAPREFILL_PASS_JOINT);
static_assert(static_cast<int32_t>(Verdict::kEmpty) == MLAPREFILL_VERDICT_EMPTY);
static_assert(static_cast<int32_t>(LseBase::kLog2) == MLAPREFILL_LSE_LOG2);
static_assert(static_cast<int32_t>(StatusCode::kInternal) == MLAPREFILL_INTERNAL);

namespace {

/// The element of a plan's list that a getter wants, or the refusal.
template <typename T>
Result<const T*> element(const mlaprefill_plan* plan, const std::vector<T> Plan::*list, int64_t index) {
  MLAPREFILL_RETURN_IF_ERROR(require(plan, "plan"));
  const std::vector<T>& values = plan->plan.*list;
  if (index < 0 || index >= static_cast<int64_t>(values.size())) {
    return error(StatusCode::kOutOfRange, "index: must be in 0..{} (excluded), got {}", values.size(), index);
  }
  return &values[static_cast<size_t>(index)];
}

}  // namespace

const char* mlaprefill_status_name(mlaprefill_status code) {
  if (code < MLAPREFILL_OK || code > MLAPREFILL_INTERNAL) return "unknown";
  return to_string(static_cast<StatusCode>(code)).data();
}

const char* mlaprefill_version(void) { return version().data(); }

mlaprefill_status mlaprefill_validate_dims(const mlaprefill_dims* dims, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MlaDims converted;
    MLAPREFILL_RETURN_IF_ERROR(convert("dims", dims, converted));
    return validate(converted);
  });
}

double mlaprefill_yarn_mscale(double factor, double mscale_all_dim) {
  return yarn_mscale(factor, mscale_all_dim);
}

double mlaprefill_yarn_softmax_scale(int64_t qk_head_dim, double factor, double mscale_all_dim) {
  return yarn_softmax_scale(qk_head_dim, factor, mscale_all_dim);
}

int64_t mlaprefill_dtype_size_bytes(int32_t dtype) {
  DType known{};
  return convert_dtype("dtype", dtype, known).ok() ? size_bytes(known) : 0;
}

mlaprefill_tensor mlaprefill_contiguous(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  mlaprefill_tensor tensor = MLAPREFILL_TENSOR_INIT;
  if (rank < 1 || rank > 4 || shape == nullptr) return tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.rank = rank;
  int64_t step = 1;
  for (int32_t i = rank - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = step;
    step *= shape[i];
  }
  return tensor;
}

mlaprefill_status mlaprefill_parse_plan_mode(const char* name, int32_t* mode, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(name, "name"));
    MLAPREFILL_RETURN_IF_ERROR(require(mode, "mode"));
    const Result<PlanMode> parsed = parse_plan_mode(name);
    if (!parsed.ok()) return parsed.status();
    *mode = static_cast<int32_t>(parsed.value());
    return {};
  });
}

mlaprefill_status mlaprefill_plan_create(const mlaprefill_dims* dims, const mlaprefill_batch* batch,
                                         const mlaprefill_plan_options* options,
                                         const mlaprefill_device_properties* device, mlaprefill_plan** plan,
                                         mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(plan, "plan"));
    *plan = nullptr;
    MlaDims known_dims;
    RaggedBatch known_batch;
    PlanOptions known_options;
    DeviceProperties known_device;
    MLAPREFILL_RETURN_IF_ERROR(convert("dims", dims, known_dims));
    MLAPREFILL_RETURN_IF_ERROR(convert("batch", batch, known_batch));
    MLAPREFILL_RETURN_IF_ERROR(convert("options", options, known_options));
    MLAPREFILL_RETURN_IF_ERROR(convert("device", device, known_device));
    Result<Plan> made = make_plan(known_dims, known_batch, known_options, known_device);
    if (!made.ok()) return made.status();
    *plan = new mlaprefill_plan{std::move(made).value()};
    return {};
  });
}

void mlaprefill_plan_destroy(mlaprefill_plan* plan) { delete plan; }

mlaprefill_status mlaprefill_plan_get_info(const mlaprefill_plan* plan, mlaprefill_plan_info* info,
                                           mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(plan, "plan"));
    const Plan& p = plan->plan;
    mlaprefill_plan_info result = MLAPREFILL_PLAN_INFO_INIT;
    result.fingerprint = fingerprint(p);
    result.num_requests = p.num_requests;
    result.num_query_rows = p.num_query_rows;
    result.num_passes = static_cast<int64_t>(p.passes.size());
    result.num_spans = static_cast<int64_t>(p.spans.size());
    result.num_tiles = static_cast<int64_t>(p.tiles.size());
    result.expanded_rows = p.cost.expanded_rows;
    result.visible_pairs = p.cost.visible_pairs;
    result.attention_flop = p.cost.attention_flop;
    result.expand_flop = p.cost.expand_flop;
    result.metadata_offset_bytes = p.workspace.metadata_offset_bytes;
    result.metadata_bytes = p.workspace.metadata_bytes;
    result.latent_offset_bytes = p.workspace.latent_offset_bytes;
    result.expanded_offset_bytes = p.workspace.expanded_offset_bytes;
    result.state_out_offset_bytes = p.workspace.state_out_offset_bytes;
    result.state_max_offset_bytes = p.workspace.state_max_offset_bytes;
    result.state_sum_offset_bytes = p.workspace.state_sum_offset_bytes;
    result.workspace_bytes = p.workspace.total_bytes;
    result.verdict = static_cast<int32_t>(p.verdict);
    return write_struct("info", result, info);
  });
}

mlaprefill_status mlaprefill_plan_get_pass(const mlaprefill_plan* plan, int64_t index, mlaprefill_pass* pass,
                                           mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    const Result<const Pass*> found = element(plan, &Plan::passes, index);
    if (!found.ok()) return found.status();
    const Pass& p = *found.value();
    const mlaprefill_pass result{.struct_size = sizeof(mlaprefill_pass),
                                 .rows = p.rows,
                                 .span_begin = p.span_begin,
                                 .span_end = p.span_end,
                                 .tile_begin = p.tile_begin,
                                 .tile_end = p.tile_end,
                                 .kind = static_cast<int32_t>(p.kind),
                                 .all_rows_active = p.all_rows_active};
    return write_struct("pass", result, pass);
  });
}

mlaprefill_status mlaprefill_plan_get_span(const mlaprefill_plan* plan, int64_t index, mlaprefill_span* span,
                                           mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    const Result<const Span*> found = element(plan, &Plan::spans, index);
    if (!found.ok()) return found.status();
    const Span& s = *found.value();
    const mlaprefill_span result{.struct_size = sizeof(mlaprefill_span),
                                 .key_begin = s.key_begin,
                                 .key_end = s.key_end,
                                 .row_begin = s.row_begin,
                                 .request = s.request,
                                 .continuation = s.continuation,
                                 .first = s.first,
                                 .last = s.last};
    return write_struct("span", result, span);
  });
}

mlaprefill_status mlaprefill_plan_get_tile(const mlaprefill_plan* plan, int64_t index, mlaprefill_tile* tile,
                                           mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    const Result<const Tile*> found = element(plan, &Plan::tiles, index);
    if (!found.ok()) return found.status();
    const Tile& t = *found.value();
    const mlaprefill_tile result{.struct_size = sizeof(mlaprefill_tile),
                                 .span = t.span,
                                 .query_begin = t.query_begin,
                                 .query_rows = t.query_rows,
                                 .key_tiles = t.key_tiles};
    return write_struct("tile", result, tile);
  });
}

mlaprefill_status mlaprefill_plan_to_text(const mlaprefill_plan* plan, char* text, size_t capacity,
                                          size_t* length_bytes, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(plan, "plan"));
    write_string(to_text(plan->plan), text, capacity, length_bytes);
    return {};
  });
}

mlaprefill_status mlaprefill_plan_to_json(const mlaprefill_plan* plan, char* json, size_t capacity,
                                          size_t* length_bytes, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(plan, "plan"));
    write_string(to_json(plan->plan), json, capacity, length_bytes);
    return {};
  });
}

mlaprefill_status mlaprefill_workspace_upper_bound_bytes(const mlaprefill_dims* dims,
                                                         const mlaprefill_plan_options* options,
                                                         const mlaprefill_device_properties* device,
                                                         const mlaprefill_plan_bounds* bounds,
                                                         int64_t* size_bytes, mlaprefill_error* error) {
  return guard(error, [&]() -> Status {
    MLAPREFILL_RETURN_IF_ERROR(require(size_bytes, "size_bytes"));
    MlaDims known_dims;
    PlanOptions known_options;
    DeviceProperties known_device;
    PlanBounds known_bounds;
    MLAPREFILL_RETURN_IF_ERROR(convert("dims", dims, known_dims));
    MLAPREFILL_RETURN_IF_ERROR(convert("options", options, known_options));
    MLAPREFILL_RETURN_IF_ERROR(convert("device", device, known_device));
    MLAPREFILL_RETURN_IF_ERROR(convert("bounds", bounds, known_bounds));
    const Result<int64_t> bytes =
        workspace_upper_bound_bytes(known_dims, known_options, known_device, known_bounds);
    if (!bytes.ok()) return bytes.status();
    *size_bytes = bytes.value();
    return {};
  });
}
