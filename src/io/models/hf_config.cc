// Reads a Hugging Face config.json of an MLA model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "io/file.h"
#include "io/models/model.h"

namespace mlaprefill {
namespace {

using nlohmann::json;

constexpr std::string_view kKnownRopeTypes[] = {"default",  "dynamic", "linear", "llama3",
                                                "longrope", "su",      "yarn"};

class ConfigReader {
 public:
  ConfigReader(const json& config, const std::string& name) : config_(config), name_(name) {}

  Status integer(const char* field, int64_t smallest, int64_t& value) const {
    const json found = config_.value(field, json());
    if (!found.is_number_integer()) {
      return error(StatusCode::kParseError, "{}: {}: must be a whole number, got {}", name_, field,
                   shown(found));
    }
    // Values past 63 bits come out negative or are unsigned and too large; both are refused.
    const bool fits = !found.is_number_unsigned() ||
                      found.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    value = fits ? found.get<int64_t>() : -1;
    if (value < smallest || value > std::numeric_limits<int32_t>::max()) {
      return error(StatusCode::kParseError, "{}: {}: must be {} to {}, got {}", name_, field, smallest,
                   std::numeric_limits<int32_t>::max(), shown(found));
    }
    return {};
  }

  Status dim(const char* field, int32_t& value) const {
    int64_t wide = 0;
    MLAPREFILL_RETURN_IF_ERROR(integer(field, 1, wide));
    value = static_cast<int32_t>(wide);
    return {};
  }

  /// MiniCPM3 gives no v_head_dim: its modelling code takes hidden_size / num_attention_heads.
  Status v_head_dim(int32_t num_heads, int32_t& value) const {
    if (config_.contains("v_head_dim") || config_.value("model_type", json()) != "minicpm3") {
      return dim("v_head_dim", value);
    }
    int32_t hidden_size = 0;
    MLAPREFILL_RETURN_IF_ERROR(dim("hidden_size", hidden_size));
    value = hidden_size / num_heads;
    return {};
  }

  /// Only YaRN with mscale_all_dim changes the softmax scale.
  Status yarn(ModelConfig& model) const {
    json scaling = config_.value("rope_scaling", json());
    if (scaling.is_null()) scaling = config_.value("rope_parameters", json());
    if (scaling.is_null()) return {};
    if (!scaling.is_object()) {
      return error(StatusCode::kParseError, "{}: rope_scaling: must be an object or null, got {}", name_,
                   shown(scaling));
    }
    const json type = scaling.value(scaling.contains("rope_type") ? "rope_type" : "type", json("default"));
    const bool known = type.is_string() && std::find(std::begin(kKnownRopeTypes), std::end(kKnownRopeTypes),
                                                     type.get<std::string>()) != std::end(kKnownRopeTypes);
    if (!known) {
      return error(StatusCode::kParseError, "{}: rope_scaling.type: must be one of {}, got {}", name_,
                   fmt::join(kKnownRopeTypes, ", "), shown(type));
    }
    if (type != "yarn") return {};
    MLAPREFILL_RETURN_IF_ERROR(real(scaling, "factor", true, model.yarn_factor));
    return real(scaling, "mscale_all_dim", false, model.yarn_mscale_all_dim);
  }

 private:
  static std::string shown(const json& value) {
    return value.is_null() ? "nothing" : quote(value.dump(-1, ' ', true, json::error_handler_t::replace));
  }

  Status real(const json& scaling, const char* field, bool required, double& value) const {
    const json found = scaling.value(field, json());
    if (found.is_null() && !required) return {};
    if (!found.is_number() || !std::isfinite(found.get<double>()) || found.get<double>() < 0.0) {
      return error(StatusCode::kParseError, "{}: rope_scaling.{}: must be a number >= 0, got {}", name_,
                   field, shown(found));
    }
    value = found.get<double>();
    return {};
  }

  const json& config_;
  const std::string& name_;
};

}  // namespace

Result<ModelConfig> parse_model_config(std::string_view text, const std::string& name) {
  // The depth of nesting is bounded so that no file can exhaust the stack.
  constexpr int kMaxDepth = 64;
  bool too_deep = false;
  const auto watch_depth = [&too_deep](int depth, json::parse_event_t, json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  json config = json::parse(text, watch_depth, /*allow_exceptions=*/false);
  if (too_deep || !config.is_object()) {
    return error(StatusCode::kParseError,
                 "{}: file: must hold one JSON object at most {} levels deep, got something else", name,
                 kMaxDepth);
  }
  // Multimodal models keep the language model's fields one level down.
  if (!config.contains("kv_lora_rank") && config.contains("text_config") &&
      config["text_config"].is_object()) {
    config = json(config["text_config"]);
  }
  const ConfigReader reader(config, name);
  ModelConfig model;
  model.name = name;
  model.source = name;
  int64_t layers = 0;
  MLAPREFILL_RETURN_IF_ERROR(reader.dim("num_attention_heads", model.dims.num_heads));
  MLAPREFILL_RETURN_IF_ERROR(reader.dim("kv_lora_rank", model.dims.kv_lora_rank));
  MLAPREFILL_RETURN_IF_ERROR(reader.dim("qk_nope_head_dim", model.dims.qk_nope_head_dim));
  MLAPREFILL_RETURN_IF_ERROR(reader.dim("qk_rope_head_dim", model.dims.qk_rope_head_dim));
  MLAPREFILL_RETURN_IF_ERROR(reader.v_head_dim(model.dims.num_heads, model.dims.v_head_dim));
  MLAPREFILL_RETURN_IF_ERROR(reader.integer("max_position_embeddings", 1, model.max_context_tokens));
  MLAPREFILL_RETURN_IF_ERROR(reader.integer("num_hidden_layers", 1, layers));
  MLAPREFILL_RETURN_IF_ERROR(reader.yarn(model));
  model.num_layers = static_cast<int32_t>(layers);
  model.dims.softmax_scale =
      yarn_softmax_scale(model.dims.qk_head_dim(), model.yarn_factor, model.yarn_mscale_all_dim);
  if (Status status = validate(model.dims); !status.ok()) {
    return Status(status.code(), fmt::format("{}: {}", name, status.message()));
  }
  return model;
}

}  // namespace mlaprefill
