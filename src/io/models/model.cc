#include "io/models/model.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "core/error.h"
#include "io/file.h"

namespace mlaprefill {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

struct Shape {
  int32_t heads, rank, nope, rope, v;
};

ModelConfig preset(std::string name, std::string source, const Shape& shape, int32_t layers,
                   int64_t max_context, double yarn_factor, double yarn_mscale_all_dim) {
  ModelConfig model;
  model.name = std::move(name);
  model.source = std::move(source);
  model.dims = {shape.heads, shape.rank, shape.nope, shape.rope, shape.v, 0.0};
  model.dims.softmax_scale = yarn_softmax_scale(model.dims.qk_head_dim(), yarn_factor, yarn_mscale_all_dim);
  model.num_layers = layers;
  model.max_context_tokens = max_context;
  model.yarn_factor = yarn_factor;
  model.yarn_mscale_all_dim = yarn_mscale_all_dim;
  return model;
}

}  // namespace

std::span<const ModelConfig> model_presets() {
  static const std::array<ModelConfig, 5> presets = {
      preset("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite config.json", {16, 512, 128, 64, 128}, 27,
             163840, 40.0, 0.707),
      preset("deepseek-v3", "deepseek-ai/DeepSeek-V3 config.json", {128, 512, 128, 64, 128}, 61, 163840, 40.0,
             1.0),
      preset("kimi-k2", "moonshotai/Kimi-K2-Instruct config.json", {64, 512, 128, 64, 128}, 61, 131072, 32.0,
             1.0),
      preset("glm", "zai-org/GLM-4.7-Flash config.json", {20, 512, 192, 64, 256}, 47, 202752, 1.0, 0.0),
      preset("minicpm3", "openbmb/MiniCPM3-4B config.json", {40, 256, 64, 32, 64}, 62, 32768, 1.0, 0.0),
  };
  return presets;
}

Result<ModelConfig> load_model(const std::string& name_or_path) {
  std::string names;
  for (const ModelConfig& model : model_presets()) {
    if (model.name == name_or_path) return model;
    names += (names.empty() ? "" : ", ") + model.name;
  }
  std::error_code failure;
  if (!std::filesystem::exists(name_or_path, failure)) {
    return invalid("model: must be one of {} or the path of a config.json, got {}", names,
                   quote(name_or_path));
  }
  const Result<std::string> text = read_file(name_or_path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  return parse_model_config(text.value(), name_or_path);
}

Result<MlaDims> shard_heads(const MlaDims& dims, int32_t ranks) {
  if (ranks < 1 || dims.num_heads % ranks != 0) {
    return invalid("tp: must be a divisor of the model's {} heads, got {}", dims.num_heads, ranks);
  }
  MlaDims shard = dims;
  shard.num_heads = dims.num_heads / ranks;
  return shard;
}

}  // namespace mlaprefill
