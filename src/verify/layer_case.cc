#include "verify/layer_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "backend/latent_cache.h"
#include "core/error.h"
#include "core/tensor_access.h"

namespace mlaprefill::verify {
namespace {

constexpr int32_t kUnusedBlock = 12345678;

std::string variant_name(const LayerVariant& variant) {
  return fmt::format("{}, {} tokens, {}{}", to_string(variant.mode), variant.workspace_tokens,
                     variant.path == LayerPath::kFused ? "fused" : "composed",
                     variant.invariant ? ", invariant" : "");
}

void fill_rows(HostTensor& tensor, RowRange rows, Random& random) {
  const Tensor view = tensor.view();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t i = 0; i < view.shape[1]; ++i) {
      if (view.rank == 2) tensor.set(random.normal(), row, i);
      for (int64_t d = 0; view.rank == 3 && d < view.shape[2]; ++d) tensor.set(random.normal(), row, i, d);
    }
  }
}

// A layer's tensors in a backend's memory.
class PlacedLayer {
 public:
  PlacedLayer(const LayerInputs& inputs, const Backend& backend)
      : inputs_(inputs),
        backend_(backend),
        placement_(backend),
        outputs_(inputs.outputs()),
        weight_(placement_.put(inputs.kv_b_proj)) {
    tensors_.q = q_ = placement_.put(inputs.q);
    tensors_.kv_latent = latent_ = placement_.put(inputs.kv_latent);
    tensors_.k_rope = rope_ = placement_.put(inputs.k_rope);
    tensors_.cache = {placement_.put(inputs.cache), inputs.config.cache_scale};
    tensors_.out = placement_.put(outputs_.out);
    lse_ = placement_.put(outputs_.lse);
    tensors_.lse = outputs_.lse_view(lse_);
  }

  Status run(const Plan& plan, LayerPath path) {
    const auto layer = MlaLayer::create(backend_, inputs_.config.dims, weight_);
    if (!layer.ok()) return layer.status();
    const int64_t size_bytes = plan.workspace.total_bytes;
    const Workspace workspace{placement_.put_buffer(size_bytes), size_bytes};
    MLAPREFILL_RETURN_IF_ERROR(placement_.status());
    MLAPREFILL_RETURN_IF_ERROR(backend_.upload(plan, workspace, {}));
    MLAPREFILL_RETURN_IF_ERROR(layer.value().run(plan, tensors_, workspace, path));
    if (!placement_.guards_intact(workspace.data, size_bytes)) {
      return error(StatusCode::kInternal, "workspace: bytes around it must not change, got others");
    }
    return placement_.status();
  }

  Outputs fetch(std::string_view variant, Report& report) {
    Outputs got{placement_.get(tensors_.out, outputs_.out), placement_.get(lse_, outputs_.lse),
                outputs_.base};
    check_unchanged(variant, "q", inputs_.q, placement_.get(q_, inputs_.q), report);
    check_unchanged(variant, "kv_latent", inputs_.kv_latent, placement_.get(latent_, inputs_.kv_latent),
                    report);
    check_unchanged(variant, "k_rope", inputs_.k_rope, placement_.get(rope_, inputs_.k_rope), report);
    check_unchanged(variant, "cache", inputs_.cache, placement_.get(tensors_.cache.data, inputs_.cache),
                    report);
    if (!placement_.status().ok()) report.fail(variant, placement_.status().message());
    return got;
  }

 private:
  const LayerInputs& inputs_;
  const Backend& backend_;
  Placement placement_;
  Outputs outputs_;
  Tensor weight_, q_, latent_, rope_, lse_;
  LayerTensors tensors_;
};

SupportQuery support_query(const LayerCase& layer_case) {
  SupportQuery query;
  query.dims = layer_case.dims;
  query.query_dtype = layer_case.dtype;
  query.weight_dtype = layer_case.weight_dtype.value_or(layer_case.dtype);
  query.output_dtype = layer_case.out_dtype;
  query.cache_dtype = layer_case.cache_dtype;
  return query;
}

}  // namespace

std::vector<LayerVariant> default_variants() {
  constexpr LayerPath kComposed = LayerPath::kComposed;
  constexpr LayerPath kFused = LayerPath::kFused;
  return {
      {PlanMode::kBridge, 65536, false, kFused},
      {PlanMode::kBridge, 64, false, kFused},
      {PlanMode::kBridge, 65536, true, kFused},
      {PlanMode::kBridge, 64, true, kFused},
      {PlanMode::kBridge, 65536, false, kComposed},
      {PlanMode::kBridge, 100, false, kComposed},
      {PlanMode::kMinContinuation, 192, false, kComposed},
      {PlanMode::kVllm, 128, false, kComposed},
      {PlanMode::kEvenSplit, 256, false, kComposed},
      {PlanMode::kBridge, 64, true, kComposed},
      {PlanMode::kBridge, 1000, true, kComposed},
      {PlanMode::kBridge, 65536, true, kComposed},
  };
}

LayerInputs::LayerInputs(const LayerCase& layer_case) : config(layer_case) {
  if (config.variants.empty()) config.variants = default_variants();
  const MlaDims& dims = config.dims;
  Random random(seed_of(config.name));

  query_start_loc.push_back(0);
  int64_t used_blocks = 0;
  for (const auto& [queries, context] : config.requests) {
    query_lens.push_back(queries);
    context_lens.push_back(context);
    query_start_loc.push_back(query_start_loc.back() + queries + config.padding_rows);
    const int64_t blocks = (context + config.block_size - 1) / config.block_size;
    block_table_cols = std::max(block_table_cols, blocks + 1);
    used_blocks += blocks;
  }

  const int64_t rows = query_start_loc.back();
  const int64_t extra = config.sliced ? 24 : 0;
  const int64_t head_pitch = dims.qk_head_dim() + extra;
  q = HostTensor(config.dtype, {rows, dims.num_heads, dims.qk_head_dim()},
                 {dims.num_heads * head_pitch + extra, head_pitch, 1});
  kv_latent = HostTensor(config.dtype, {rows, dims.kv_lora_rank}, {dims.latent_dim() + extra, 1});
  k_rope = HostTensor(config.dtype, {rows, dims.qk_rope_head_dim}, {dims.qk_rope_head_dim + extra, 1});
  for (const RowRange& range : written()) {
    fill_rows(q, range, random);
    fill_rows(kv_latent, range, random);
    fill_rows(k_rope, range, random);
  }
  kv_b_proj = HostTensor(config.weight_dtype.value_or(config.dtype),
                         {dims.num_heads * dims.expanded_head_dim(), dims.kv_lora_rank},
                         {dims.kv_lora_rank + extra, 1});
  fill_random(kv_b_proj, random, 1.0f / std::sqrt(static_cast<float>(dims.kv_lora_rank)));

  // Blocks of all requests in one random order; block 0 and every second block are nobody's.
  const int64_t num_blocks = 2 * used_blocks + 1;
  const bool packed = config.cache_dtype == DType::kU8;
  const int64_t width = packed ? PackedRow::kBytes : dims.latent_dim();
  cache = HostTensor(config.cache_dtype, {num_blocks, config.block_size, width},
                     {config.block_size * width + (config.sliced ? 64 : 0), width, 1});
  std::vector<int32_t> free_blocks;
  for (int32_t block = 1; block < num_blocks; block += 2) free_blocks.push_back(block);
  for (size_t i = free_blocks.size(); i > 1; --i) {
    std::swap(free_blocks[i - 1], free_blocks[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  block_table.assign(config.requests.size() * static_cast<size_t>(block_table_cols), kUnusedBlock);
  const KvCache target{cache.view(), config.cache_scale};
  std::vector<float> row(static_cast<size_t>(dims.latent_dim()));
  for (size_t r = 0; r < config.requests.size(); ++r) {
    int32_t* table = block_table.data() + r * static_cast<size_t>(block_table_cols);
    for (int64_t position = 0; position < context_lens[r]; ++position) {
      if (position % config.block_size == 0) {
        table[position / config.block_size] = free_blocks.back();
        free_blocks.pop_back();
      }
      for (float& value : row) value = random.normal();
      write_latent_row(target, table[position / config.block_size], position % config.block_size,
                       dims.latent_dim(), row.data());
    }
  }
}

RaggedBatch LayerInputs::batch() const {
  RaggedBatch batch;
  batch.query_start_loc = query_start_loc;
  batch.query_lens = query_lens;
  batch.context_lens = context_lens;
  batch.block_table = {block_table.data(), static_cast<int64_t>(config.requests.size()), block_table_cols,
                       block_table_cols};
  batch.block_size = config.block_size;
  batch.num_cache_blocks = cache.view().shape[0];
  return batch;
}

Result<Plan> LayerInputs::plan(const LayerVariant& variant, const DeviceProperties& device) const {
  PlanOptions options;
  options.mode = variant.mode;
  // An invariant plan cuts at key tiles alone, so its workspace holds at least one.
  options.workspace_tokens = variant.invariant
                                 ? std::max<int64_t>(variant.workspace_tokens, device.key_tile_tokens)
                                 : variant.workspace_tokens;
  options.invariant = variant.invariant;
  options.working_dtype = config.dtype;
  return make_plan(config.dims, batch(), options, device);
}

Outputs LayerInputs::outputs() const {
  const MlaDims& dims = config.dims;
  const int64_t rows = query_start_loc.back();
  const int64_t extra = config.sliced ? 16 : 0;
  const int64_t head_pitch = dims.v_head_dim + extra;
  return {HostTensor(config.out_dtype, {rows, dims.num_heads, dims.v_head_dim},
                     {dims.num_heads * head_pitch + extra, head_pitch, 1}),
          make_lse(config.lse_layout, dims.num_heads, rows), config.lse_base};
}

std::vector<RowRange> LayerInputs::written() const {
  std::vector<RowRange> rows;
  for (size_t r = 0; r < query_lens.size(); ++r) {
    rows.push_back({query_start_loc[r], query_start_loc[r] + query_lens[r]});
  }
  return rows;
}

LayerTensors LayerInputs::host_tensors() const {
  LayerTensors tensors;
  tensors.q = q.view();
  tensors.kv_latent = kv_latent.view();
  tensors.k_rope = k_rope.view();
  HostTensor& readable = const_cast<HostTensor&>(cache);
  tensors.cache = {readable.view(), config.cache_scale};
  tensors.out.dtype = config.out_dtype;
  return tensors;
}

std::vector<ExpectedRow> expect(const LayerInputs& inputs, std::span<const int64_t> heads) {
  const auto plan = inputs.plan({}, {});
  if (!plan.ok()) return {};
  return expect_layer(plan.value(), inputs.kv_b_proj.view(), inputs.host_tensors(),
                      all_rows(plan.value(), heads));
}

Outputs run_layer_once(const LayerInputs& inputs, const LayerVariant& variant, const Backend& backend,
                       Report& report) {
  const std::string name = variant_name(variant);
  const auto plan = inputs.plan(variant, backend.device_properties());
  if (!report.accept(name, plan.status())) return {};
  PlacedLayer placed(inputs, backend);
  if (!report.accept(name, placed.run(plan.value(), variant.path))) return {};
  return placed.fetch(name, report);
}

Report run_layer(const LayerInputs& inputs, std::span<const ExpectedRow> expected, const Backend& backend) {
  Report report;
  if (const auto reasons = backend.supports(support_query(inputs.config)); !reasons.empty()) {
    report.unsupported = reasons.front();
    return report;
  }
  std::map<LayerPath, Outputs> invariant;
  for (const LayerVariant& variant : inputs.config.variants) {
    if (variant.path == LayerPath::kFused && !backend.has_fused_layer()) continue;
    const Outputs got = run_layer_once(inputs, variant, backend, report);
    if (!report.ok() || !report.unsupported.empty()) return report;
    const std::string name = variant_name(variant);
    check_outputs(name, expected, got, inputs.written(), report);
    if (!variant.invariant) continue;
    const auto [first, is_first] = invariant.try_emplace(variant.path, got);
    if (!is_first) check_same(name, first->second, got, report);
  }
  return report;
}

}  // namespace mlaprefill::verify
