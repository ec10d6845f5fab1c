#include "bench/case.h"

#include <chrono>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/float_formats.h"

namespace mlaprefill::bench {
namespace {

constexpr int32_t kBlockSize = 64;

// Host memory of one tensor.
class Buffer {
 public:
  Buffer(DType dtype, int64_t elements)
      : dtype_(dtype), elements_(elements), bytes_(static_cast<size_t>(elements * size_bytes(dtype))) {}

  // Sum of four uniforms: close enough to normal, unit variance times `scale`, and cheap for gigabytes.
  void fill_random(uint64_t seed, float scale) {
    uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
    for (int64_t i = 0; i < elements_; ++i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      const auto sum = static_cast<float>((state & 0xFFFF) + ((state >> 16) & 0xFFFF) +
                                          ((state >> 32) & 0xFFFF) + (state >> 48));
      store_float(bytes_.data(), dtype_, i, scale * (sum - 131070.0f) * (1.0f / 37837.0f));
    }
  }

  void* data() { return bytes_.data(); }
  Tensor view(std::initializer_list<int64_t> shape) { return Tensor(bytes_.data(), dtype_, shape); }

 private:
  DType dtype_;
  int64_t elements_;
  std::vector<std::byte> bytes_;
};

class AttentionCase : public Case {
 public:
  AttentionCase(std::unique_ptr<Backend> backend, const Shape& shape, const CaseOptions& options)
      : Case(std::move(backend)),
        q_(options.dtype, 0),
        k_(options.dtype, 0),
        v_(options.dtype, 0),
        out_(options.dtype, 0) {
    const MlaDims& dims = options.dims;
    int64_t q_rows = 0;
    int64_t k_rows = 0;
    double pairs = 0;
    for (const Request& r : shape.requests) {
      const int64_t keys = shape.causal ? int64_t{r.context} + r.new_tokens : int64_t{r.context};
      spans_.push_back({q_rows, r.new_tokens, k_rows, keys,
                        shape.causal ? int64_t{r.context} : AttentionSpan::kNotCausal});
      pairs += static_cast<double>(r.new_tokens) *
               (shape.causal ? r.context + 0.5 * (r.new_tokens + 1.0) : static_cast<double>(r.context));
      q_rows += r.new_tokens;
      k_rows += keys;
    }
    const int64_t heads = dims.num_heads;
    q_ = Buffer(options.dtype, q_rows * heads * dims.qk_head_dim());
    k_ = Buffer(options.dtype, k_rows * heads * dims.qk_head_dim());
    v_ = Buffer(options.dtype, k_rows * heads * dims.v_head_dim);
    out_ = Buffer(options.dtype, q_rows * heads * dims.v_head_dim);
    lse_.resize(static_cast<size_t>(heads * q_rows));
    q_.fill_random(1, 1.0f);
    k_.fill_random(2, 1.0f);
    v_.fill_random(3, 1.0f);
    args_.q = q_.view({q_rows, heads, dims.qk_head_dim()});
    args_.k = k_.view({k_rows, heads, dims.qk_head_dim()});
    args_.v = v_.view({k_rows, heads, dims.v_head_dim});
    args_.out = out_.view({q_rows, heads, dims.v_head_dim});
    args_.lse = {lse_.data(), q_rows, 1, LseBase::kNatural};
    args_.spans = spans_;
    args_.softmax_scale = dims.softmax_scale;
    args_.invariant = options.plan.invariant;
    work_.attention_flop = 2.0 * static_cast<double>((dims.qk_head_dim() + dims.v_head_dim) * heads) * pairs;
  }

  Status run() override { return backend_->attention(args_, {}); }

 private:
  Buffer q_, k_, v_, out_;
  std::vector<float> lse_;
  std::vector<AttentionSpan> spans_;
  AttentionArgs args_;
};

class LayerCase : public Case {
 public:
  static Result<std::unique_ptr<Case>> create(std::unique_ptr<Backend> backend, const Shape& shape,
                                              const CaseOptions& options) {
    const MlaDims& dims = options.dims;
    auto self = std::unique_ptr<LayerCase>(new LayerCase(std::move(backend), options));
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
    for (size_t i = 0; i < block_table.size(); ++i) block_table[i] = static_cast<int32_t>(i);

    RaggedBatch batch;
    batch.query_start_loc = query_start_loc;
    batch.context_lens = context_lens;
    batch.block_table = {block_table.data(), requests, max_blocks, max_blocks};
    batch.block_size = kBlockSize;
    batch.num_cache_blocks = requests * max_blocks;
    const auto start = std::chrono::steady_clock::now();
    auto plan = make_plan(dims, batch, options.plan, self->backend_->device_properties());
    self->plan_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!plan.ok()) return plan.status();
    self->plan_ = std::move(plan).value();
    self->work_ = {self->plan_.cost.attention_flop, self->plan_.cost.expand_flop};

    const int64_t rows = query_start_loc.back();
    const int64_t heads = dims.num_heads;
    self->q_ = Buffer(options.dtype, rows * heads * dims.qk_head_dim());
    self->latent_ = Buffer(options.dtype, rows * dims.kv_lora_rank);
    self->rope_ = Buffer(options.dtype, rows * dims.qk_rope_head_dim);
    self->cache_ = Buffer(options.dtype, requests * max_blocks * kBlockSize * dims.latent_dim());
    self->out_ = Buffer(options.dtype, rows * heads * dims.v_head_dim);
    self->lse_.resize(static_cast<size_t>(heads * rows));
    Buffer weight(options.dtype, heads * dims.expanded_head_dim() * dims.kv_lora_rank);
    self->q_.fill_random(1, 1.0f);
    self->latent_.fill_random(2, 1.0f);
    self->rope_.fill_random(3, 1.0f);
    self->cache_.fill_random(4, 1.0f);
    weight.fill_random(5, 0.04f);

    LayerTensors& tensors = self->tensors_;
    tensors.q = self->q_.view({rows, heads, dims.qk_head_dim()});
    tensors.kv_latent = self->latent_.view({rows, dims.kv_lora_rank});
    tensors.k_rope = self->rope_.view({rows, dims.qk_rope_head_dim});
    tensors.cache.data = self->cache_.view({requests * max_blocks, kBlockSize, dims.latent_dim()});
    tensors.out = self->out_.view({rows, heads, dims.v_head_dim});
    tensors.lse = {self->lse_.data(), rows, 1, LseBase::kNatural};
    auto layer = MlaLayer::create(*self->backend_, dims,
                                  weight.view({heads * dims.expanded_head_dim(), dims.kv_lora_rank}));
    if (!layer.ok()) return layer.status();
    self->layer_ = std::make_unique<MlaLayer>(std::move(layer).value());
    const bool composed =
        options.path == LayerPath::kComposed || self->layer_->path() == LayerPath::kComposed;
    self->workspace_.resize(composed ? static_cast<size_t>(self->plan_.workspace.total_bytes) : 0);
    return std::unique_ptr<Case>(std::move(self));
  }

  Status run() override {
    const Workspace workspace{workspace_.data(), static_cast<int64_t>(workspace_.size())};
    return layer_->run(plan_, tensors_, workspace, path_);
  }

 private:
  LayerCase(std::unique_ptr<Backend> backend, const CaseOptions& options)
      : Case(std::move(backend)),
        path_(options.path),
        q_(options.dtype, 0),
        latent_(options.dtype, 0),
        rope_(options.dtype, 0),
        cache_(options.dtype, 0),
        out_(options.dtype, 0) {}

  LayerPath path_;
  Plan plan_;
  Buffer q_, latent_, rope_, cache_, out_;
  std::vector<float> lse_;
  std::vector<std::byte> workspace_;
  LayerTensors tensors_;
  std::unique_ptr<MlaLayer> layer_;
};

}  // namespace

Result<std::unique_ptr<Case>> Case::create(const Shape& shape, const CaseOptions& options) {
  auto backend = open_backend(options.backend, options.backend_options);
  if (!backend.ok()) return backend.status();
  if (shape.operation == Operation::kLayer) {
    return LayerCase::create(std::move(backend).value(), shape, options);
  }
  return std::unique_ptr<Case>(std::make_unique<AttentionCase>(std::move(backend).value(), shape, options));
}

}  // namespace mlaprefill::bench
