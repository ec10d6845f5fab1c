#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "verify/cases.h"
#include "verify/layer_case.h"

namespace mlaprefill::verify {
namespace {

// No context, no new tokens, one token, context around a block, longer than a small workspace.
const std::vector<LayerCase::Request> kMixed{{5, 0}, {0, 40}, {33, 130}, {1, 64}, {0, 0}, {20, 7}, {66, 0}};

MlaDims dims(int32_t heads, int32_t rank, int32_t nope, int32_t rope, int32_t v_dim) {
  return {heads, rank, nope, rope, v_dim, 1.2 / std::sqrt(static_cast<double>(nope + rope))};
}

// Few heads: all; many: first, last and two between.
std::vector<int64_t> checked_heads(int64_t heads) {
  if (heads <= 5) return all_heads(heads);
  return {0, heads / 3, heads - 2, heads - 1};
}

Case make_case(const LayerCase& layer_case) {
  return {layer_case.name, [layer_case] {
            auto inputs = std::make_shared<const LayerInputs>(layer_case);
            auto expected = std::make_shared<const std::vector<ExpectedRow>>(
                expect(*inputs, checked_heads(layer_case.dims.num_heads)));
            return
                [inputs, expected](const Backend& backend) { return run_layer(*inputs, *expected, backend); };
          }};
}

std::string dims_name(const MlaDims& of) {
  return fmt::format("layer/{}-{}-{}-{}/h{}", of.qk_nope_head_dim, of.qk_rope_head_dim, of.v_head_dim,
                     of.kv_lora_rank, of.num_heads);
}

void add_dims(std::vector<Case>& cases) {
  for (const MlaDims& of : {dims(2, 512, 128, 64, 128), dims(1, 512, 192, 64, 256), dims(5, 256, 64, 32, 64),
                            dims(2, 384, 96, 32, 96), dims(3, 16, 16, 16, 16), dims(2, 208, 48, 16, 80),
                            dims(1, 1024, 256, 128, 256)}) {
    LayerCase one;
    one.dims = of;
    one.requests = kMixed;
    one.name = dims_name(of) + "/bf16";
    cases.push_back(make_case(one));
  }
}

void add_heads(std::vector<Case>& cases) {
  for (const int32_t heads : {10, 16, 20, 40}) {
    LayerCase one;
    one.dims = dims(heads, 64, 32, 16, 32);
    one.requests = kMixed;
    one.name = dims_name(one.dims) + "/bf16";
    cases.push_back(make_case(one));
  }
}

void add_dtypes(std::vector<Case>& cases) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType cache : {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kU8}) {
      LayerCase one;
      one.dims = cache == DType::kU8 ? dims(1, 512, 32, 64, 32) : dims(2, 128, 32, 16, 32);
      one.requests = kMixed;
      one.dtype = one.out_dtype = dtype;
      one.cache_dtype = cache;
      // Only f8_e4m3 has a scale; the others must ignore it.
      one.cache_scale = cache == DType::kF8E4M3 ? 0.0625f : 3.0f;
      one.variants = {{PlanMode::kBridge, 65536, false, LayerPath::kFused},
                      {PlanMode::kBridge, 100, false, LayerPath::kComposed},
                      {PlanMode::kVllm, 64, false, LayerPath::kComposed}};
      one.name = fmt::format("{}/{}/cache-{}", dims_name(one.dims), to_string(dtype), to_string(cache));
      cases.push_back(make_case(one));
    }
  }
}

void add_layouts(std::vector<Case>& cases) {
  LayerCase one;
  one.dims = dims(5, 256, 64, 32, 64);
  one.requests = kMixed;
  one.sliced = true;
  one.padding_rows = 3;
  one.out_dtype = DType::kF32;
  one.lse_layout = LseLayout::kTokenMajor;
  one.lse_base = LseBase::kLog2;
  one.name = dims_name(one.dims) + "/bf16/sliced/token-major-log2/out-f32";
  cases.push_back(make_case(one));
}

void add_block_sizes(std::vector<Case>& cases) {
  for (const int32_t block_size : {1, 8, 16, 48, 64, 100, 128, 256, 1024}) {
    LayerCase one;
    one.dims = dims(2, 64, 32, 16, 32);
    one.block_size = block_size;
    one.requests = {
        {3, 1}, {2, block_size - 1}, {4, block_size}, {1, block_size + 1}, {5, 3 * block_size + 7}};
    one.variants = {{PlanMode::kBridge, 65536, false, LayerPath::kFused},
                    {PlanMode::kBridge, 200, false, LayerPath::kComposed},
                    {PlanMode::kVllm, 1024, false, LayerPath::kComposed}};
    one.name = fmt::format("{}/bf16/block-{}", dims_name(one.dims), block_size);
    cases.push_back(make_case(one));
  }
}

void add_edges(std::vector<Case>& cases) {
  LayerCase one;
  one.dims = dims(2, 64, 32, 16, 32);
  const std::string prefix = dims_name(one.dims) + "/bf16/";
  one.name = prefix + "no-requests";
  cases.push_back(make_case(one));
  one.requests = {{0, 20}, {0, 0}, {0, 1}};
  one.name = prefix + "no-queries";
  cases.push_back(make_case(one));
  one.requests = {{200, 0}};
  one.name = prefix + "no-context";
  cases.push_back(make_case(one));
  one.requests = {{1, 700}};
  one.name = prefix + "one-query-long-context";
  cases.push_back(make_case(one));
}

}  // namespace

std::vector<Case> layer_cases() {
  std::vector<Case> cases;
  add_dims(cases);
  add_heads(cases);
  add_dtypes(cases);
  add_layouts(cases);
  add_block_sizes(cases);
  add_edges(cases);
  return cases;
}

}  // namespace mlaprefill::verify
