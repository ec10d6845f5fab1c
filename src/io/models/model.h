// Models: the MLA dimensions, softmax scale and limits of a preset or of a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "mlaprefill/dims.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

struct ModelConfig {
  std::string name;
  std::string source;  ///< where the numbers are from
  MlaDims dims;        ///< of the whole model; softmax_scale includes YaRN's factor
  int32_t num_layers = 0;
  int64_t max_context_tokens = 0;
  double yarn_factor = 1.0;
  double yarn_mscale_all_dim = 0.0;
};

/// The models known by name.
std::span<const ModelConfig> model_presets();

/// A preset's name, or the path of a config.json.
Result<ModelConfig> load_model(const std::string& name_or_path);

/// The content of a config.json; `name` stands for it in messages.
Result<ModelConfig> parse_model_config(std::string_view json, const std::string& name);

/// Dims of one rank of `ranks` that share the heads evenly.
Result<MlaDims> shard_heads(const MlaDims& dims, int32_t ranks);

}  // namespace mlaprefill
