#include "bench/case.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/float_formats.h"
#include "io/backend_buffer.h"

namespace mlaprefill::bench {
namespace {

constexpr int32_t kBlockSize = 64;

// One tensor in the backend's memory.
class Buffer {
 public:
  explicit Buffer(const Backend& backend) : memory_(backend.memory()), bytes_(backend.memory()) {}

  Status allocate(DType dtype, int64_t elements) {
    dtype_ = dtype;
    return bytes_.reserve(elements * size_bytes(dtype));
  }

  // Sum of four uniforms: close enough to normal, unit variance times `scale`, and cheap for gigabytes.
  Status allocate_random(DType dtype, int64_t elements, uint64_t seed, float scale) {
    MLAPREFILL_RETURN_IF_ERROR(allocate(dtype, elements));
    std::vector<std::byte> host(static_cast<size_t>(elements * size_bytes(dtype)));
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (int64_t i = 0; i < elements; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const auto sum = static_cast<float>((state & 0xFFFF) + ((state >> 16) & 0xFFFF) +
                                          ((state >> 32) & 0xFFFF) + (state >> 48));
      store_float(host.data(), dtype, i, scale * (sum - 131070.0f) * (1.0f / 37837.0f));
    }
    MLAPREFILL_RETURN_IF_ERROR(
        memory_.copy_from_host(data(), host.data(), static_cast<int64_t>(host.size()), {}));
    return memory_.synchronize({});
  }

  void* data() const { return bytes_.data(); }
  Tensor view(std::initializer_list<int64_t> shape) const { return Tensor(data(), dtype_, shape); }

 private:
  const Memory& memory_;
  DType dtype_ = DType::kF32;
  BackendBuffer bytes_;
};

class AttentionCase : public Case {
 public:
  static Result<std::unique_ptr<Case>> create(std::unique_ptr<Backend> backend, const Shape& shape,
                                              const CaseOptions& options) {
    auto self = std::unique_ptr<AttentionCase>(new AttentionCase(std::move(backend)));
    MLAPREFILL_RETURN_IF_ERROR(self->prepare(shape, options));
    return std::unique_ptr<Case>(std::move(self));
  }

  Status run() override { return backend_->attention(args_, {}); }

 private:
  explicit AttentionCase(std::unique_ptr<Backend> backend) : Case(std::move(backend)) {}

  Status prepare(const Shape& shape, const CaseOptions& options) {
    const MlaDims& dims = options.dims;
    const int64_t heads = dims.num_heads;
    int64_t q_rows = 0;
    int64_t k_rows = 0;
    double pairs = 0;
    for (const Request& r : shape.requests) {
      const int64_t keys = shape.causal ? int64_t{r.context} + r.new_tokens : int64_t{r.context};
      const int64_t offset = shape.causal ? int64_t{r.context} : AttentionSpan::kNotCausal;
      spans_.push_back({q_rows, r.new_tokens, k_rows, keys, offset});
      pairs += static_cast<double>(r.new_tokens) *
               (shape.causal ? r.context + 0.5 * (r.new_tokens + 1.0) : static_cast<double>(r.context));
      q_rows += r.new_tokens;
      k_rows += keys;
    }
    const int64_t qk_dim = dims.qk_head_dim();
    const int64_t v_dim = dims.v_head_dim;
    MLAPREFILL_RETURN_IF_ERROR(q_.allocate_random(options.dtype, q_rows * heads * qk_dim, 1, 1.0f));
    MLAPREFILL_RETURN_IF_ERROR(k_.allocate_random(options.dtype, k_rows * heads * qk_dim, 2, 1.0f));
    MLAPREFILL_RETURN_IF_ERROR(v_.allocate_random(options.dtype, k_rows * heads * v_dim, 3, 1.0f));
    MLAPREFILL_RETURN_IF_ERROR(out_.allocate(options.dtype, q_rows * heads * v_dim));
    MLAPREFILL_RETURN_IF_ERROR(lse_.allocate(DType::kF32, heads * q_rows));
    args_.q = q_.view({q_rows, heads, qk_dim});
    args_.k = k_.view({k_rows, heads, qk_dim});
    args_.v = v_.view({k_rows, heads, v_dim});
    args_.out = out_.view({q_rows, heads, v_dim});
    args_.lse = {static_cast<float*>(lse_.data()), q_rows, 1, LseBase::kNatural};
    args_.spans = spans_;
    args_.softmax_scale = dims.softmax_scale;
    args_.invariant = options.plan.invariant;
    const int64_t workspace_bytes = backend_->attention_workspace_bytes(args_);
    MLAPREFILL_RETURN_IF_ERROR(workspace_.allocate(DType::kU8, workspace_bytes));
    args_.workspace = {workspace_.data(), workspace_bytes};
    work_.attention_flop = 2.0 * static_cast<double>((qk_dim + v_dim) * heads) * pairs;
    return {};
  }

  Buffer q_{*backend_}, k_{*backend_}, v_{*backend_}, out_{*backend_}, lse_{*backend_}, workspace_{*backend_};
  std::vector<AttentionSpan> spans_;
  AttentionArgs args_;
};

class LayerCase : public Case {
 public:
  static Result<std::unique_ptr<Case>> create(std::unique_ptr<Backend> backend, const Shape& shape,
                                              const CaseOptions& options) {
    auto self = std::unique_ptr<LayerCase>(new LayerCase(std::move(backend), options.path));
    MLAPREFILL_RETURN_IF_ERROR(self->plan(shape, options));
    MLAPREFILL_RETURN_IF_ERROR(self->prepare(options));
    return std::unique_ptr<Case>(std::move(self));
  }

  Status run() override { return layer_->run(plan_, tensors_, lent_, path_); }

 private:
  LayerCase(std::unique_ptr<Backend> backend, LayerPath path) : Case(std::move(backend)), path_(path) {}

  Status plan(const Shape& shape, const CaseOptions& options) {
    std::vector<int32_t> query_start_loc{0};
    std::vector<int32_t> context_lens;
    int32_t max_blocks = 1;
    for (const Request& r : shape.requests) {
      query_start_loc.push_back(query_start_loc.back() + r.new_tokens);
      context_lens.push_back(r.context);
      max_blocks = std::max(max_blocks, (r.context + kBlockSize - 1) / kBlockSize);
    }
    const auto requests = static_cast<int64_t>(shape.requests.size());
    std::vector<int32_t> block_table(static_cast<size_t>(requests * max_blocks));
    std::iota(block_table.begin(), block_table.end(), 0);
    num_blocks_ = requests * max_blocks;

    RaggedBatch batch;
    batch.query_start_loc = query_start_loc;
    batch.context_lens = context_lens;
    batch.block_table = {block_table.data(), requests, max_blocks, max_blocks};
    batch.block_size = kBlockSize;
    batch.num_cache_blocks = num_blocks_;
    const auto start = std::chrono::steady_clock::now();
    auto plan = make_plan(options.dims, batch, options.plan, backend_->device_properties());
    plan_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!plan.ok()) return plan.status();
    plan_ = std::move(plan).value();
    work_ = {plan_.cost.attention_flop, plan_.cost.expand_flop};
    return {};
  }

  Status prepare(const CaseOptions& options) {
    const MlaDims& dims = options.dims;
    const Memory& memory = backend_->memory();
    const int64_t rows = plan_.num_query_rows;
    const int64_t heads = dims.num_heads;
    const int64_t rank = dims.kv_lora_rank;
    const int64_t weight_rows = heads * dims.expanded_head_dim();
    Buffer weight(*backend_);
    const auto random = [&](Buffer& buffer, int64_t elements, uint64_t seed, float scale) {
      return buffer.allocate_random(options.dtype, elements, seed, scale);
    };
    MLAPREFILL_RETURN_IF_ERROR(random(q_, rows * heads * dims.qk_head_dim(), 1, 1.0f));
    MLAPREFILL_RETURN_IF_ERROR(random(latent_, rows * rank, 2, 1.0f));
    MLAPREFILL_RETURN_IF_ERROR(random(rope_, rows * dims.qk_rope_head_dim, 3, 1.0f));
    MLAPREFILL_RETURN_IF_ERROR(random(cache_, num_blocks_ * kBlockSize * dims.latent_dim(), 4, 1.0f));
    MLAPREFILL_RETURN_IF_ERROR(random(weight, weight_rows * rank, 5, 0.04f));
    MLAPREFILL_RETURN_IF_ERROR(out_.allocate(options.dtype, rows * heads * dims.v_head_dim));
    MLAPREFILL_RETURN_IF_ERROR(lse_.allocate(DType::kF32, heads * rows));
    tensors_.q = q_.view({rows, heads, dims.qk_head_dim()});
    tensors_.kv_latent = latent_.view({rows, rank});
    tensors_.k_rope = rope_.view({rows, dims.qk_rope_head_dim});
    tensors_.cache.data = cache_.view({num_blocks_, kBlockSize, dims.latent_dim()});
    tensors_.out = out_.view({rows, heads, dims.v_head_dim});
    tensors_.lse = {static_cast<float*>(lse_.data()), rows, 1, LseBase::kNatural};

    auto layer = MlaLayer::create(*backend_, dims, weight.view({weight_rows, rank}));
    if (!layer.ok()) return layer.status();
    layer_.emplace(std::move(layer).value());
    const bool composed = path_ == LayerPath::kComposed || layer_->path() == LayerPath::kComposed;
    const int64_t workspace_bytes = composed ? plan_.workspace.total_bytes : 0;
    MLAPREFILL_RETURN_IF_ERROR(workspace_.allocate(DType::kU8, workspace_bytes));
    lent_ = {workspace_.data(), workspace_bytes};
    MLAPREFILL_RETURN_IF_ERROR(backend_->upload(plan_, lent_, {}));
    return memory.synchronize({});
  }

  LayerPath path_;
  Plan plan_;
  int64_t num_blocks_ = 0;
  Buffer q_{*backend_}, latent_{*backend_}, rope_{*backend_}, cache_{*backend_}, out_{*backend_},
      lse_{*backend_}, workspace_{*backend_};
  Workspace lent_;
  LayerTensors tensors_;
  std::optional<MlaLayer> layer_;
};

}  // namespace

Result<std::unique_ptr<Case>> Case::create(const Shape& shape, const CaseOptions& options) {
  auto backend = open_backend(options.backend, options.backend_options);
  if (!backend.ok()) return backend.status();
  if (shape.operation == Operation::kLayer) {
    return LayerCase::create(std::move(backend).value(), shape, options);
  }
  return AttentionCase::create(std::move(backend).value(), shape, options);
}

}  // namespace mlaprefill::bench
