#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/float_formats.h"
#include "core/tensor_access.h"
#include "verify/cases.h"

namespace mlaprefill::verify {
namespace {

struct AppendCase {
  std::string name{};
  int64_t rank = 512;
  int64_t rope = 64;
  DType dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;
  float scale = 1.0f;
};

constexpr int64_t kTokens = 70;
constexpr int64_t kBlocks = 12;
constexpr int64_t kBlockSize = 16;

struct AppendInputs {
  AppendCase config;
  HostTensor kv_latent;
  HostTensor k_rope;
  HostTensor slots;
  HostTensor cache;
  std::vector<int64_t> slot_mapping;

  double value(int64_t row, int64_t d) const {
    return d < config.rank ? kv_latent.get(row, d) : k_rope.get(row, d - config.rank);
  }
};

std::shared_ptr<const AppendInputs> make_inputs(const AppendCase& config) {
  auto inputs = std::make_shared<AppendInputs>();
  inputs->config = config;
  Random random(seed_of(config.name));
  inputs->kv_latent = HostTensor(config.dtype, {kTokens, config.rank}, {config.rank + config.rope, 1});
  inputs->k_rope = HostTensor(config.dtype, {kTokens, config.rope}, {config.rope + 8, 1});
  fill_random(inputs->kv_latent, random, 0.3f);
  fill_random(inputs->k_rope, random, 2.0f);
  const int64_t width = config.cache_dtype == DType::kU8 ? 656 : config.rank + config.rope;
  inputs->cache =
      HostTensor(config.cache_dtype, {kBlocks, kBlockSize, width}, {kBlockSize * width + 64, width, 1});
  // A random permutation of the slots; every seventh row is skipped.
  for (int64_t slot = 0; slot < kBlocks * kBlockSize; ++slot) inputs->slot_mapping.push_back(slot);
  for (size_t i = inputs->slot_mapping.size(); i > 1; --i) {
    std::swap(inputs->slot_mapping[i - 1],
              inputs->slot_mapping[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  inputs->slot_mapping.resize(kTokens);
  for (size_t i = 3; i < inputs->slot_mapping.size(); i += 7) inputs->slot_mapping[i] = -1;
  inputs->slots = HostTensor(DType::kI64, {kTokens});
  std::memcpy(inputs->slots.view().data, inputs->slot_mapping.data(), kTokens * sizeof(int64_t));
  return inputs;
}

// A stored packed latent must be within half an e4m3 step of its value, under a scale of largest / 448.
double packed_bound(const AppendInputs& inputs, int64_t row, int64_t d) {
  double largest = 0.0;
  for (int64_t i = d / 128 * 128; i < d / 128 * 128 + 128; ++i) {
    largest = std::max(largest, std::fabs(inputs.value(row, i)));
  }
  return std::max(std::fabs(inputs.value(row, d)) * 0x1p-4, largest / 448.0 * 0x1p-10) * (1.0 + 0x1p-20);
}

void check_row(const AppendInputs& inputs, const HostTensor& cache, int64_t row, Report& report) {
  const AppendCase& config = inputs.config;
  const int64_t slot = inputs.slot_mapping[static_cast<size_t>(row)];
  const auto* bytes =
      static_cast<const uint8_t*>(element_address(cache.view(), slot / kBlockSize, slot % kBlockSize));
  for (int64_t d = 0; d < config.rank + config.rope; ++d) {
    const double value = inputs.value(row, d);
    double stored = 0.0;
    double bound = 0.0;
    if (config.cache_dtype == DType::kU8 && d < config.rank) {
      float scale = 0.0f;
      std::memcpy(&scale, bytes + 512 + 4 * (d / 128), sizeof(scale));
      stored = double{scale} * load_float(bytes, DType::kF8E4M3, d);
      bound = packed_bound(inputs, row, d);
    } else if (config.cache_dtype == DType::kU8) {
      stored = load_float(bytes + 528, DType::kBF16, d - config.rank);
      bound = rounding_step(DType::kBF16, value);
    } else if (config.cache_dtype == DType::kF8E4M3) {
      stored = double{config.scale} * load_float(bytes, DType::kF8E4M3, d);
      bound = std::max(std::fabs(value) * 0x1p-4, config.scale * 0x1p-10) * (1.0 + 0x1p-20);
    } else {
      stored = load_float(bytes, config.cache_dtype, d);
      bound = config.cache_dtype == DType::kF32 ? 0.0 : rounding_step(config.cache_dtype, value);
    }
    if (!agrees(value, stored, bound, report.worst.out)) {
      report.fail("append", mismatch_text(fmt::format("cache[slot {}, {}]", slot, d), value, bound, stored));
    }
  }
}

// Poisons the rows that were written; nothing else may have changed.
bool only_rows_changed(const AppendInputs& inputs, HostTensor cache) {
  const Tensor view = cache.view();
  for (const int64_t slot : inputs.slot_mapping) {
    if (slot < 0) continue;
    std::memset(element_address(view, slot / kBlockSize, slot % kBlockSize), 0xFF,
                static_cast<size_t>(view.shape[2] * size_bytes(view.dtype)));
  }
  const auto bytes = cache.bytes();
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0xFF}; });
}

Report run_append(const AppendInputs& inputs, const Backend& backend) {
  Report report;
  Placement placement(backend);
  const Tensor cache = placement.put(inputs.cache);
  AppendArgs args;
  args.kv_latent = placement.put(inputs.kv_latent);
  args.k_rope = placement.put(inputs.k_rope);
  args.slot_mapping = static_cast<const int64_t*>(placement.put(inputs.slots).data);
  args.cache = {cache, inputs.config.scale};
  if (!report.accept("append", placement.status())) return report;
  if (!report.accept("append", backend.append(args, {}))) return report;
  const HostTensor got = placement.get(cache, inputs.cache);
  for (int64_t row = 0; row < kTokens; ++row) {
    if (inputs.slot_mapping[static_cast<size_t>(row)] >= 0) check_row(inputs, got, row, report);
  }
  if (!only_rows_changed(inputs, got)) report.fail("append", "cache: other rows must not change");
  return report;
}

void add(std::vector<Case>& cases, AppendCase config) {
  config.name = fmt::format("append/{}-{}/{}/cache-{}", config.rank, config.rope, to_string(config.dtype),
                            to_string(config.cache_dtype));
  cases.push_back({config.name, [config] {
                     return [inputs = make_inputs(config)](const Backend& backend) {
                       return run_append(*inputs, backend);
                     };
                   }});
}

}  // namespace

std::vector<Case> append_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const DType cache : {DType::kBF16, DType::kF16, DType::kF32, DType::kU8}) {
      add(cases, {.dtype = dtype, .cache_dtype = cache, .scale = 3.0f});
    }
    add(cases, {.dtype = dtype, .cache_dtype = DType::kF8E4M3, .scale = 0.0625f});
  }
  add(cases, {.rank = 208, .rope = 16});
  return cases;
}

}  // namespace mlaprefill::verify
