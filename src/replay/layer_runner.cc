#include "replay/layer_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/float_formats.h"
#include "replay/kv_b_proj.h"
#include "replay/row_oracle.h"
#include "replay/stopwatch.h"

namespace mlaprefill {
namespace {

constexpr int64_t kElementBytes = 2;  // bf16 everywhere: queries, latents, cache, weights, output
constexpr size_t kShownMismatches = 5;

}  // namespace

LayerRunner::LayerRunner(const ReplayOptions& options, const Trace& trace, std::unique_ptr<Backend> backend)
    : options_(options),
      backend_(std::move(backend)),
      memory_(&backend_->memory()),
      content_(trace, options.dims, options.seed),
      sampler_(mix64(options.seed, 0x5a)),
      query_(*memory_),
      latent_(*memory_),
      slots_(*memory_),
      out_(*memory_),
      lse_(*memory_),
      workspace_(*memory_) {}

Result<std::unique_ptr<LayerRunner>> LayerRunner::create(const ReplayOptions& options, const Trace& trace,
                                                         int64_t num_blocks) {
  Result<std::unique_ptr<Backend>> backend = open_backend(options.backend, options.backend_options);
  if (!backend.ok()) return backend.status();
  SupportQuery query;
  query.dims = options.dims;
  if (const auto reasons = backend.value()->supports(query); !reasons.empty()) {
    return error(StatusCode::kUnsupported, "backend {}: must support the model, got: {}", options.backend,
                 fmt::join(reasons, "; "));
  }
  std::unique_ptr<LayerRunner> runner(new LayerRunner(options, trace, std::move(backend).value()));
  MLAPREFILL_RETURN_IF_ERROR(runner->prepare(num_blocks));
  return runner;
}

Status LayerRunner::prepare(int64_t num_blocks) {
  num_blocks_ = num_blocks;
  const MlaDims& dims = options_.dims;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    Result<std::vector<uint16_t>> weights = layer_weights(layer);
    if (!weights.ok()) return weights.status();
    weights_.push_back(std::move(weights).value());
    BackendBuffer staged(*memory_);
    const int64_t bytes = std::ssize(weights_.back()) * kElementBytes;
    MLAPREFILL_RETURN_IF_ERROR(staged.reserve(bytes));
    MLAPREFILL_RETURN_IF_ERROR(memory_->copy_from_host(staged.data(), weights_.back().data(), bytes, {}));
    const ConstTensor kv_b_proj(staged.data(), DType::kBF16,
                                {dims.num_heads * dims.expanded_head_dim(), dims.kv_lora_rank});
    Result<MlaLayer> made = MlaLayer::create(*backend_, dims, kv_b_proj);
    if (!made.ok()) return made.status();
    MLAPREFILL_RETURN_IF_ERROR(memory_->synchronize({}));
    layers_.push_back(std::move(made).value());

    const int64_t cache_bytes =
        num_blocks * options_.scheduler.block_tokens * dims.latent_dim() * kElementBytes;
    caches_.emplace_back(*memory_);
    MLAPREFILL_RETURN_IF_ERROR(caches_.back().reserve(cache_bytes));
    const std::vector<uint8_t> nan(size_t{1} << 22, 0xff);
    for (int64_t offset = 0; offset < cache_bytes; offset += std::ssize(nan)) {
      MLAPREFILL_RETURN_IF_ERROR(
          memory_->copy_from_host(static_cast<std::byte*>(caches_.back().data()) + offset, nan.data(),
                                  std::min(std::ssize(nan), cache_bytes - offset), {}));
    }
    MLAPREFILL_RETURN_IF_ERROR(memory_->synchronize({}));
  }
  path_ = options_.path == LayerPath::kAuto ? layers_.front().path() : options_.path;
  return {};
}

Result<std::vector<uint16_t>> LayerRunner::layer_weights(int64_t layer) const {
  if (options_.weights_path.empty()) return content_.weights(layer);
  return load_kv_b_proj(options_.weights_path, options_.weights_layer + layer, options_.model.dims,
                        options_.dims.num_heads);
}

int64_t LayerRunner::cache_bytes() const {
  int64_t bytes = 0;
  for (const BackendBuffer& buffer : caches_) bytes += buffer.size_bytes();
  return bytes;
}

KvCache LayerRunner::cache(int64_t layer) const {
  KvCache kv;
  kv.data = Tensor(caches_[static_cast<size_t>(layer)].data(), DType::kBF16,
                   {num_blocks_, options_.scheduler.block_tokens, options_.dims.latent_dim()});
  return kv;
}

Status LayerRunner::make_inputs(int64_t layer, const Step& step, const StepBatch& batch) {
  const int64_t query_width = options_.dims.num_heads * options_.dims.qk_head_dim();
  const int64_t latent_width = options_.dims.latent_dim();
  const int64_t tokens = batch.num_tokens();
  host_query_.resize(static_cast<size_t>(tokens * query_width));
  host_latent_.resize(static_cast<size_t>(tokens * latent_width));
  uint16_t* query = host_query_.data();
  uint16_t* latent = host_latent_.data();
  for (const PrefillRow& row : step.rows) {
    for (int64_t position = row.context_tokens; position < row.context_tokens + row.new_tokens; ++position) {
      query = std::copy_n(content_.query(row.request, position, layer), query_width, query);
      latent = std::copy_n(content_.latent(row.request, position, layer), latent_width, latent);
    }
  }
  MLAPREFILL_RETURN_IF_ERROR(query_.reserve(tokens * query_width * kElementBytes));
  MLAPREFILL_RETURN_IF_ERROR(latent_.reserve(tokens * latent_width * kElementBytes));
  MLAPREFILL_RETURN_IF_ERROR(slots_.reserve(tokens * int64_t{sizeof(int64_t)}));
  MLAPREFILL_RETURN_IF_ERROR(
      memory_->copy_from_host(query_.data(), host_query_.data(), tokens * query_width * kElementBytes, {}));
  MLAPREFILL_RETURN_IF_ERROR(memory_->copy_from_host(latent_.data(), host_latent_.data(),
                                                     tokens * latent_width * kElementBytes, {}));
  MLAPREFILL_RETURN_IF_ERROR(memory_->copy_from_host(slots_.data(), batch.slot_mapping().data(),
                                                     tokens * int64_t{sizeof(int64_t)}, {}));
  return memory_->synchronize({});
}

Status LayerRunner::run_layer(int64_t layer, const StepBatch& batch, const Plan& plan, StageTimes& times) {
  const MlaDims& dims = options_.dims;
  const int64_t tokens = batch.num_tokens();
  Stopwatch watch;
  MLAPREFILL_RETURN_IF_ERROR(out_.reserve(tokens * dims.num_heads * dims.v_head_dim * kElementBytes));
  MLAPREFILL_RETURN_IF_ERROR(lse_.reserve(tokens * dims.num_heads * int64_t{sizeof(float)}));
  if (path_ == LayerPath::kComposed)
    MLAPREFILL_RETURN_IF_ERROR(workspace_.reserve(plan.workspace.total_bytes));
  const Workspace workspace{workspace_.data(), workspace_.size_bytes()};
  watch.lap_s();

  LayerTensors tensors;
  tensors.q = ConstTensor(query_.data(), DType::kBF16, {tokens, dims.num_heads, dims.qk_head_dim()});
  const auto* latent = static_cast<const uint16_t*>(latent_.data());
  tensors.kv_latent = ConstTensor(latent, DType::kBF16, {tokens, dims.kv_lora_rank}, {dims.latent_dim(), 1});
  tensors.k_rope = ConstTensor(latent + dims.kv_lora_rank, DType::kBF16, {tokens, dims.qk_rope_head_dim},
                               {dims.latent_dim(), 1});
  tensors.cache = cache(layer);
  tensors.out = Tensor(out_.data(), DType::kBF16, {tokens, dims.num_heads, dims.v_head_dim});
  tensors.lse = {static_cast<float*>(lse_.data()), tokens, 1, LseBase::kNatural};

  AppendArgs append;
  append.kv_latent = tensors.kv_latent;
  append.k_rope = tensors.k_rope;
  append.slot_mapping = static_cast<const int64_t*>(slots_.data());
  append.cache = tensors.cache;
  // Before the layer: a request may hit blocks that another one computes in this very step.
  MLAPREFILL_RETURN_IF_ERROR(backend_->append(append, {}));
  MLAPREFILL_RETURN_IF_ERROR(memory_->synchronize({}));
  times.append_s += watch.lap_s();

  if (layer == 0) MLAPREFILL_RETURN_IF_ERROR(backend_->upload(plan, workspace, {}));
  MLAPREFILL_RETURN_IF_ERROR(
      layers_[static_cast<size_t>(layer)].run(plan, tensors, workspace, options_.path, {}));
  MLAPREFILL_RETURN_IF_ERROR(memory_->synchronize({}));
  times.layer_s += watch.lap_s();
  return {};
}

Status LayerRunner::check_rows(int64_t layer, int64_t step_index, const Step& step, const StepBatch& batch,
                               CheckStats& check) {
  const MlaDims& dims = options_.dims;
  const int64_t tokens = batch.num_tokens();
  const int64_t token = sampler_.below(tokens);
  const auto head = static_cast<int32_t>(sampler_.below(dims.num_heads));
  size_t row = 0;
  while (batch.query_start(static_cast<int64_t>(row) + 1) <= token) ++row;
  const PrefillRow& prefill = step.rows[row];
  const int64_t position = prefill.context_tokens + token - batch.query_start(static_cast<int64_t>(row));

  std::vector<uint16_t> out(static_cast<size_t>(dims.v_head_dim));
  float lse = 0.0f;
  const auto* out_row =
      static_cast<const uint16_t*>(out_.data()) + (token * dims.num_heads + head) * dims.v_head_dim;
  MLAPREFILL_RETURN_IF_ERROR(memory_->copy_to_host(out.data(), out_row, dims.v_head_dim * kElementBytes, {}));
  MLAPREFILL_RETURN_IF_ERROR(memory_->copy_to_host(
      &lse, static_cast<const float*>(lse_.data()) + head * tokens + token, int64_t{sizeof(float)}, {}));
  MLAPREFILL_RETURN_IF_ERROR(memory_->synchronize({}));

  // The oracle's latents come from the trace, not from the cache: a wrong block in the cache is a wrong
  // answer.
  RowProblem problem;
  problem.dims = &dims;
  problem.query = content_.query(prefill.request, position, layer) + head * dims.qk_head_dim();
  problem.weight =
      weights_[static_cast<size_t>(layer)].data() + head * dims.expanded_head_dim() * dims.kv_lora_rank;
  problem.num_keys = position + 1;
  problem.latent = [&](int64_t key) { return content_.latent(prefill.request, key, layer); };
  const RowValue exact = exact_row(problem);
  const RowTolerance tolerance = row_tolerance(problem, exact);

  double out_error = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double difference = std::abs(double{float_from_bf16(out[i])} - exact.out[i]);
    out_error = std::isnan(difference) ? HUGE_VAL : std::max(out_error, difference);
  }
  const double lse_difference = std::abs(double{lse} - exact.lse);
  const double lse_error = std::isnan(lse_difference) ? HUGE_VAL : lse_difference;

  ++check.rows;
  if (const double ratio = out_error / tolerance.out; ratio >= check.worst_out_ratio) {
    check.worst_out_ratio = ratio;
    check.worst_out_error = out_error;
    check.worst_out_tolerance = tolerance.out;
  }
  if (const double ratio = lse_error / tolerance.lse; ratio >= check.worst_lse_ratio) {
    check.worst_lse_ratio = ratio;
    check.worst_lse_error = lse_error;
    check.worst_lse_tolerance = tolerance.lse;
  }
  if (out_error <= tolerance.out && lse_error <= tolerance.lse) return {};
  ++check.mismatches;
  if (check.first_mismatches.size() < kShownMismatches) {
    check.first_mismatches.push_back({step_index, prefill.request, position, head, layer, out_error,
                                      tolerance.out, lse_error, tolerance.lse});
  }
  return {};
}

Status LayerRunner::run(int64_t step_index, const Step& step, const StepBatch& batch, const Plan& plan,
                        StageTimes& times, CheckStats& check) {
  std::vector<int64_t> checks_of_layer(static_cast<size_t>(options_.layers));
  for (int64_t i = 0; i < options_.check_rows; ++i)
    ++checks_of_layer[static_cast<size_t>(sampler_.below(options_.layers))];
  Stopwatch watch;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    watch.lap_s();
    MLAPREFILL_RETURN_IF_ERROR(make_inputs(layer, step, batch));
    times.inputs_s += watch.lap_s();
    MLAPREFILL_RETURN_IF_ERROR(run_layer(layer, batch, plan, times));
    watch.lap_s();
    for (int64_t i = 0; i < checks_of_layer[static_cast<size_t>(layer)]; ++i) {
      MLAPREFILL_RETURN_IF_ERROR(check_rows(layer, step_index, step, batch, check));
    }
    times.check_s += watch.lap_s();
  }
  return {};
}

}  // namespace mlaprefill
