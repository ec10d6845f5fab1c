// The Hopper backend: validates, builds parameters, enqueues. Planned calls only launch.
#include <cuda_runtime_api.h>

#include <functional>

#include "backend/internal.h"
#include "backend/sm90/attention_call.h"
#include "backend/sm90/availability.h"
#include "backend/sm90/cuda_memory.h"
#include "backend/sm90/cuda_status.h"
#include "backend/sm90/device_guard.h"
#include "backend/sm90/latent_kernels.h"
#include "backend/sm90/merge.h"
#include "backend/sm90/metadata.h"
#include "backend/sm90/projection.h"
#include "backend/sm90/small_metadata.h"
#include "backend/sm90/staging_ring.h"
#include "core/error.h"
#include "plan/kv_splits.h"

namespace mlaprefill {
namespace sm90 {
namespace {

cudaStream_t cuda_stream(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

DeviceFacts find_facts(int32_t device) {
  DeviceFacts facts;
  facts.device = device;
  const cudaError_t listed = cudaGetDeviceCount(&facts.device_count);
  if (listed != cudaSuccess) {
    facts.driver_error = cudaGetErrorString(listed);
    return facts;
  }
  if (device >= 0 && device < facts.device_count) {
    cudaDeviceGetAttribute(&facts.capability_major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&facts.capability_minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  const auto library = CublasLt::load();
  if (!library.ok()) facts.projection_error = library.status().message();
  return facts;
}

/// Device memory, released with its owner.
using DeviceBytes = std::unique_ptr<void, std::function<void(void*)>>;

/// A copy of the caller's weight and the GEMM that reads it.
class Weights final : public LayerWeights {
 public:
  Weights(const MlaDims& dims, DType dtype, DeviceBytes data, const Projection& projection)
      : dims_(dims), dtype_(dtype), data_(std::move(data)), projection_(projection) {}

  const Projection& projection() const { return projection_; }

  Status check(const Plan& plan) const {
    if (dims_.num_heads != plan.dims.num_heads || dims_.kv_lora_rank != plan.dims.kv_lora_rank ||
        dims_.latent_dim() != plan.dims.latent_dim() ||
        dims_.expanded_head_dim() != plan.dims.expanded_head_dim()) {
      return invalid("weights: must be prepared for the plan's dims, got others");
    }
    if (dtype_ != plan.options.working_dtype) {
      return error(StatusCode::kUnsupported, "weights: dtype must be the plan's working dtype {}, got {}",
                   to_string(plan.options.working_dtype), to_string(dtype_));
    }
    return {};
  }

 private:
  MlaDims dims_;
  DType dtype_;
  DeviceBytes data_;
  Projection projection_;
};

RowView row_view(const ConstTensor& tensor) {
  return {const_cast<void*>(tensor.data), tensor.dtype, tensor.stride[0]};
}

CacheView cache_view(const KvCache& cache) {
  if (!cache.data.present()) return {};
  return {cache.data.data,      cache.data.dtype,     cache.data.shape[0], cache.data.shape[1],
          cache.data.stride[0], cache.data.stride[1], cache.scale};
}

bool is_half_precision(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

/// Rows a pass is launched with.
int64_t launch_rows(const Plan& plan, int64_t pass) {
  return plan.options.bounds.has_value() ? plan.options.workspace_tokens
                                         : plan.passes[static_cast<size_t>(pass)].rows;
}

void* metadata_of(const Plan& plan, const Workspace& workspace) {
  return static_cast<std::byte*>(workspace.data) + plan.workspace.metadata_offset_bytes;
}

Status check_size(const Workspace& workspace, int64_t needed_bytes) {
  if (workspace.data != nullptr && workspace.size_bytes >= needed_bytes) return {};
  return error(StatusCode::kWorkspaceTooSmall, "workspace: must have {} bytes, got {}", needed_bytes,
               workspace.data == nullptr ? 0 : workspace.size_bytes);
}

Result<bool> is_capturing(Stream stream, const char* where) {
  cudaStreamCaptureStatus status{};
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaStreamIsCapturing(cuda_stream(stream), &status), where));
  return status != cudaStreamCaptureStatusNone;
}

class Sm90Backend final : public Backend {
 public:
  static Result<std::unique_ptr<Backend>> open(int32_t device);
  ~Sm90Backend() override {
    const DeviceGuard guard(device_);
    if (cublas_ != nullptr) lt_->destroy(cublas_);
    ring_.reset();
  }

  std::string_view name() const override { return "sm90"; }
  std::string description() const override { return description_; }
  DeviceProperties device_properties() const override {
    return {.num_processors = processors_,
            .query_tile_tokens = kMaxEntryRows,
            .key_tile_tokens = kKeyTileTokens,
            .row_alignment_rows = 1};
  }
  const Memory& memory() const override { return memory_; }

  std::vector<std::string> supports(const SupportQuery& query) const override;
  Status upload(const Plan& plan, Workspace workspace, Stream stream) const override;
  Status attention(const AttentionArgs& args, Stream stream) const override;
  int64_t attention_workspace_bytes(const AttentionArgs& args) const override {
    return lay_out_call(args, most_kv_splits(device_properties())).total_bytes;
  }
  Status merge(const MergeArgs& args, Stream stream) const override;
  Status append(const AppendArgs& args, Stream stream) const override;
  Result<std::shared_ptr<const LayerWeights>> prepare_weights(const MlaDims& dims,
                                                              ConstTensor kv_b_proj) const override;
  Status expand(const ExpandArgs& args, Stream stream) const override;
  bool attends_by_upload() const override { return true; }
  bool has_fused_layer() const override { return false; }
  Status fused_layer(const FusedLayerArgs&, Stream) const override {
    return error(StatusCode::kUnsupported, "path: must be composed on sm90, got fused");
  }

 private:
  explicit Sm90Backend(int32_t device) : device_(device), memory_(device) {}

  Status planned_attention(const AttentionArgs& args, Stream stream) const;
  /// Enqueues the transfer of an unplanned call's schedule to its workspace.
  Status upload_call(const AttentionArgs& args, const Schedule& schedule, Stream stream) const;
  Status check_uploaded(const Plan& plan, const Workspace& workspace) const;
  Status enqueue(const AttentionArgs& args, const DeviceSchedule& schedule, Stream stream) const;

  int32_t device_;
  CudaMemory memory_;
  int32_t processors_ = 0;
  std::string description_;
  TensorMapEncoder encoder_ = nullptr;
  const CublasLt* lt_ = nullptr;
  cublasLtHandle_t cublas_ = nullptr;
  std::unique_ptr<StagingRing> ring_;
};

Result<std::unique_ptr<Backend>> Sm90Backend::open(int32_t device) {
  const auto reasons = unavailable_reasons(find_facts(device));
  if (!reasons.empty()) return error(StatusCode::kUnavailable, "sm90: {}", reasons.front());
  const DeviceGuard guard(device);
  std::unique_ptr<Sm90Backend> backend(new Sm90Backend(device));
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(
      cudaDeviceGetAttribute(&backend->processors_, cudaDevAttrMultiProcessorCount, device), "device"));
  cudaDeviceProp properties;
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&properties, device), "device"));
  int driver = 0;
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaDriverGetVersion(&driver), "device"));
  backend->description_ = fmt::format("device {}: {}, {} SMs, driver for CUDA {}.{}", device, properties.name,
                                      backend->processors_, driver / 1000, driver % 1000 / 10);
  backend->encoder_ = find_tensor_map_encoder();
  if (backend->encoder_ == nullptr) {
    return error(StatusCode::kUnavailable, "sm90: the driver must offer cuTensorMapEncodeTiled, got none");
  }
  const auto library = CublasLt::load();
  if (!library.ok()) return library.status();
  backend->lt_ = library.value();
  if (backend->lt_->create(&backend->cublas_) != CUBLAS_STATUS_SUCCESS) {
    return error(StatusCode::kDeviceError, "sm90: cuBLASLt must give a handle, got none");
  }
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(prepare_attention(), "attention kernels"));
  auto ring = StagingRing::create();
  if (!ring.ok()) return ring.status();
  backend->ring_ = std::move(ring).value();
  return std::unique_ptr<Backend>(std::move(backend));
}

std::vector<std::string> Sm90Backend::supports(const SupportQuery& query) const {
  std::vector<std::string> reasons = reasons_against(query);
  for (std::string& reason : reasons_against_head_dims(query.dims.qk_head_dim(), query.dims.qk_rope_head_dim,
                                                       query.dims.v_head_dim)) {
    reasons.push_back(std::move(reason));
  }
  if (!is_half_precision(query.query_dtype)) {
    reasons.push_back(
        fmt::format("query_dtype: must be bf16 or f16 on sm90, got {}", to_string(query.query_dtype)));
  }
  if (query.weight_dtype != query.query_dtype) {
    reasons.push_back(fmt::format("weight_dtype: must be query_dtype {} on sm90, got {}",
                                  to_string(query.query_dtype), to_string(query.weight_dtype)));
  }
  if (!(query.dims.softmax_scale > 0)) {
    reasons.push_back(fmt::format("softmax_scale: must be > 0 on sm90, got {}", query.dims.softmax_scale));
  }
  return reasons;
}

Status Sm90Backend::check_uploaded(const Plan& plan, const Workspace& workspace) const {
  if (plan.device.query_tile_tokens != kMaxEntryRows) {
    return invalid("plan.device: must be the backend's device_properties (query_tile_tokens {}), got {}",
                   kMaxEntryRows, plan.device.query_tile_tokens);
  }
  return check_size(workspace, plan.workspace.total_bytes);
}

Status Sm90Backend::upload(const Plan& plan, Workspace workspace, Stream stream) const {
  MLAPREFILL_RETURN_IF_ERROR(check_uploaded(plan, workspace));
  const DeviceGuard guard(device_);
  const auto capturing = is_capturing(stream, "upload");
  if (!capturing.ok()) return capturing.status();
  if (capturing.value()) {
    return invalid("upload: stream must not be capturing, got a capture: upload first, then replay");
  }
  auto lease = ring_->acquire(plan.workspace.metadata_bytes);
  if (!lease.ok()) return lease.status();
  const int64_t size_bytes = write_metadata(plan, lease->data());
  return lease->copy_to(metadata_of(plan, workspace), size_bytes, cuda_stream(stream));
}

Status Sm90Backend::attention(const AttentionArgs& args, Stream stream) const {
  if (args.plan != nullptr) return planned_attention(args, stream);
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  bool has_work = false;
  for (const AttentionSpan& span : args.spans) {
    constexpr int64_t kRowLimit = int64_t{1} << 30;
    has_work |= span.q_len > 0;
    if (span.q_row + span.q_len > kRowLimit || span.k_row + span.k_len > kRowLimit) {
      return error(StatusCode::kLimitExceeded, "spans: rows must be below 2^30 on sm90, got q {} and k {}",
                   span.q_row + span.q_len, span.k_row + span.k_len);
    }
  }
  if (!has_work) return {};
  const CallLayout layout = lay_out_call(args, most_kv_splits(device_properties()));
  MLAPREFILL_RETURN_IF_ERROR(check_size(args.workspace, layout.total_bytes));
  const DeviceGuard guard(device_);
  const Schedule schedule = schedule_call(args, layout.max_kv_splits);
  MLAPREFILL_RETURN_IF_ERROR(upload_call(args, schedule, stream));
  AttentionArgs call = args;
  call.pass = 0;
  auto* base = static_cast<std::byte*>(args.workspace.data);
  return enqueue(call,
                 {.metadata = base,
                  .passes = 1,
                  .max_kv_splits = schedule.kv_splits,
                  .partials = base + layout.metadata_bytes},
                 stream);
}

Status Sm90Backend::upload_call(const AttentionArgs& args, const Schedule& schedule, Stream stream) const {
  const int64_t size_bytes = call_metadata_bytes(schedule);
  if (size_bytes <= kSmallMetadataBytes) {
    SmallMetadata metadata;
    write_call_metadata(schedule, metadata.bytes.data());
    return cuda_status(store_small_metadata(metadata, size_bytes, args.workspace.data, cuda_stream(stream)),
                       "metadata");
  }
  const auto capturing = is_capturing(stream, "attention");
  if (!capturing.ok()) return capturing.status();
  if (capturing.value()) {
    return error(StatusCode::kUnsupported,
                 "attention: must have a plan or a schedule of at most {} bytes inside a capture, got {}",
                 kSmallMetadataBytes, size_bytes);
  }
  auto lease = ring_->acquire(size_bytes);
  if (!lease.ok()) return lease.status();
  write_call_metadata(schedule, lease->data());
  return lease->copy_to(args.workspace.data, size_bytes, cuda_stream(stream));
}

Status Sm90Backend::planned_attention(const AttentionArgs& args, Stream stream) const {
  const Plan& plan = *args.plan;
  AttentionArgs shapes = args;
  shapes.spans = {};
  MLAPREFILL_RETURN_IF_ERROR(validate(shapes));
  MLAPREFILL_RETURN_IF_ERROR(check_uploaded(plan, args.workspace));
  const auto passes = static_cast<int64_t>(plan.passes.size());
  if (args.pass < 0 || args.pass >= passes) {
    return error(StatusCode::kOutOfRange, "pass: must lie in 0 .. {}, got {}", passes - 1, args.pass);
  }
  const Pass& pass = plan.passes[static_cast<size_t>(args.pass)];
  if (pass.tile_begin == pass.tile_end && !plan.options.bounds.has_value()) return {};
  const DeviceGuard guard(device_);
  auto* base = static_cast<std::byte*>(args.workspace.data);
  return enqueue(args,
                 {.metadata = metadata_of(plan, args.workspace),
                  .passes = passes,
                  .max_kv_splits = plan.workspace.max_kv_splits,
                  .partials = base + plan.workspace.partials_offset_bytes},
                 stream);
}

Status Sm90Backend::enqueue(const AttentionArgs& args, const DeviceSchedule& schedule, Stream stream) const {
  AttentionCall call;
  MLAPREFILL_RETURN_IF_ERROR(make_attention_call(args, encoder_, schedule, call));
  return cuda_status(
      launch_attention(call.dims, call.element, call.params, processors_ / 2, cuda_stream(stream)),
      "attention");
}

Status Sm90Backend::merge(const MergeArgs& args, Stream stream) const {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  if (args.partials.size() > kMaxPartials) {
    return error(StatusCode::kLimitExceeded, "partials: must be at most {} on sm90, got {}", kMaxPartials,
                 args.partials.size());
  }
  if (args.out.shape[0] * args.out.shape[1] == 0) return {};
  const DeviceGuard guard(device_);
  return cuda_status(launch_merge(args, processors_, cuda_stream(stream)), "merge");
}

Status Sm90Backend::append(const AppendArgs& args, Stream stream) const {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  if (args.kv_latent.shape[0] == 0) return {};
  const DeviceGuard guard(device_);
  AppendLaunch launch;
  launch.slots = args.slot_mapping;
  launch.tokens = args.kv_latent.shape[0];
  launch.latent_width = static_cast<int32_t>(args.kv_latent.shape[1]);
  launch.rope_width = static_cast<int32_t>(args.k_rope.shape[1]);
  launch.latents = row_view(args.kv_latent);
  launch.rope = row_view(args.k_rope);
  launch.cache = cache_view(args.cache);
  return cuda_status(launch_append(launch, processors_, cuda_stream(stream)), "append");
}

Result<std::shared_ptr<const LayerWeights>> Sm90Backend::prepare_weights(const MlaDims& dims,
                                                                         ConstTensor kv_b_proj) const {
  MLAPREFILL_RETURN_IF_ERROR(validate_kv_b_proj(dims, kv_b_proj));
  if (!is_half_precision(kv_b_proj.dtype)) {
    return error(StatusCode::kUnsupported, "kv_b_proj: dtype must be bf16 or f16 on sm90, got {}",
                 to_string(kv_b_proj.dtype));
  }
  const DeviceGuard guard(device_);
  const int64_t outputs = kv_b_proj.shape[0];
  const int64_t inputs = kv_b_proj.shape[1];
  const int64_t element_bytes = size_bytes(kv_b_proj.dtype);
  auto memory = memory_.allocate(outputs * inputs * element_bytes);
  if (!memory.ok()) return memory.status();
  DeviceBytes data(memory.value(), [owner = memory_](void* bytes) { owner.release(bytes); });
  const auto row_bytes = static_cast<size_t>(inputs * element_bytes);
  MLAPREFILL_RETURN_IF_ERROR(
      cuda_status(cudaMemcpy2D(data.get(), row_bytes, kv_b_proj.data,
                               static_cast<size_t>(kv_b_proj.stride[0] * element_bytes), row_bytes,
                               static_cast<size_t>(outputs), cudaMemcpyDeviceToDevice),
                  "kv_b_proj"));
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(nullptr), "kv_b_proj"));
  const ProjectionShape shape{.outputs = outputs,
                              .inputs = inputs,
                              .weight_row_stride = inputs,
                              .latent_row_stride = dims.latent_dim(),
                              .dtype = kv_b_proj.dtype};
  const auto projection = Projection::create(*lt_, cublas_, shape, data.get());
  if (!projection.ok()) return projection.status();
  auto scratch = memory_.allocate(outputs * element_bytes);
  if (!scratch.ok()) return scratch.status();
  const DeviceBytes scratch_owner(scratch.value(), data.get_deleter());
  MLAPREFILL_RETURN_IF_ERROR(projection->load_code(data.get(), scratch.value(), nullptr));
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(nullptr), "kv_b_proj"));
  return std::shared_ptr<const LayerWeights>(
      std::make_shared<Weights>(dims, kv_b_proj.dtype, std::move(data), projection.value()));
}

Status Sm90Backend::expand(const ExpandArgs& args, Stream stream) const {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  const Plan& plan = *args.plan;
  MLAPREFILL_RETURN_IF_ERROR(check_uploaded(plan, args.workspace));
  const auto* weights = dynamic_cast<const Weights*>(args.weights);
  if (weights == nullptr) {
    return invalid("weights: must come from prepare_weights of the sm90 backend, got another's");
  }
  MLAPREFILL_RETURN_IF_ERROR(weights->check(plan));
  const int64_t rows = launch_rows(plan, args.pass);
  if (rows == 0) return {};
  if (args.latent.shape[0] < rows || args.expanded.shape[0] < rows) {
    return error(StatusCode::kWorkspaceTooSmall,
                 "latent, expanded: must have the launch's {} rows, got {}, {}", rows, args.latent.shape[0],
                 args.expanded.shape[0]);
  }
  if (args.latent.stride[0] != plan.dims.latent_dim() ||
      args.expanded.stride[0] != plan.dims.num_heads * plan.dims.expanded_head_dim() ||
      args.expanded.stride[1] != plan.dims.expanded_head_dim()) {
    return error(StatusCode::kUnsupported, "latent, expanded: must be contiguous on sm90, got other strides");
  }
  const DeviceGuard guard(device_);
  GatherArgs gather;
  gather.metadata = metadata_of(plan, args.workspace);
  gather.pass = args.pass;
  gather.rows = rows;
  gather.latent_width = plan.dims.kv_lora_rank;
  gather.rope_width = plan.dims.qk_rope_head_dim;
  gather.new_latents = row_view(args.kv_latent);
  gather.new_rope = row_view(args.k_rope);
  gather.cache = cache_view(args.cache);
  gather.out = row_view(args.latent);
  MLAPREFILL_RETURN_IF_ERROR(cuda_status(launch_gather(gather, processors_, cuda_stream(stream)), "expand"));
  return weights->projection().run(args.latent.data, args.expanded.data, rows, plan.options.invariant,
                                   cuda_stream(stream));
}

}  // namespace
}  // namespace sm90

Result<std::unique_ptr<Backend>> open_sm90_backend(const BackendOptions& options) {
  return sm90::Sm90Backend::open(options.device);
}

BackendInfo sm90_backend_info() {
  std::vector<std::string> reasons = sm90::unavailable_reasons(sm90::find_facts(BackendOptions{}.device));
  return {.name = "sm90", .available = reasons.empty(), .reasons = std::move(reasons)};
}

}  // namespace mlaprefill
