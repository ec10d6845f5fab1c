#include "io/models/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace mlaprefill {
namespace {

constexpr const char* kConfig =
    R"({"model_type": "deepseek_v3", "num_attention_heads": 128, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_hidden_layers": 61,
  "max_position_embeddings": 163840,
  "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(Models, PresetsAreValidAndHaveTheRightScale) {
  for (const ModelConfig& model : model_presets()) {
    EXPECT_TRUE(validate(model.dims).ok()) << model.name;
    EXPECT_EQ(load_model(model.name).value().dims.num_heads, model.dims.num_heads);
  }
  // 1/sqrt(192) * (0.1 ln 40 + 1)^2
  EXPECT_NEAR(load_model("deepseek-v3").value().dims.softmax_scale, 0.1352337788608801, 1e-15);
  EXPECT_NEAR(load_model("deepseek-v2-lite").value().dims.softmax_scale, 0.1147213867929261, 1e-12);
  EXPECT_DOUBLE_EQ(load_model("glm").value().dims.softmax_scale, 1.0 / 16.0);
  EXPECT_EQ(load_model("glm").value().dims.v_head_dim, 256);
  EXPECT_EQ(load_model("minicpm3").value().dims.kv_lora_rank, 256);
}

TEST(Models, ReadsAConfigAsThePresetOfTheSameModel) {
  const Result<ModelConfig> model = parse_model_config(kConfig, "config.json");
  ASSERT_TRUE(model.ok()) << model.status().message();
  const ModelConfig preset = load_model("deepseek-v3").value();
  EXPECT_EQ(model.value().dims.num_heads, preset.dims.num_heads);
  EXPECT_EQ(model.value().dims.softmax_scale, preset.dims.softmax_scale);
  EXPECT_EQ(model.value().max_context_tokens, preset.max_context_tokens);
  EXPECT_EQ(model.value().num_layers, 61);
}

TEST(Models, OnlyYarnWithMscaleAllDimChangesTheScale) {
  const double plain = 1.0 / std::sqrt(192.0);
  for (const char* scaling :
       {"null", R"({"rope_type": "linear", "factor": 4})", R"({"type": "yarn", "factor": 40})"}) {
    const std::string text =
        replaced(kConfig, R"({"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0})", scaling);
    const Result<ModelConfig> model = parse_model_config(text, "c");
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_DOUBLE_EQ(model.value().dims.softmax_scale, plain) << scaling;
  }
}

TEST(Models, DerivesMiniCpmsValueDim) {
  const std::string text = R"({"model_type": "minicpm3", "hidden_size": 2560, "num_attention_heads": 40,
    "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "num_hidden_layers": 62,
    "max_position_embeddings": 32768, "rope_scaling": {"type": "longrope"}})";
  const Result<ModelConfig> model = parse_model_config(text, "c");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model.value().dims.v_head_dim, 64);
}

TEST(Models, FindsTheLanguageModelOfAMultimodalOne) {
  const Result<ModelConfig> model =
      parse_model_config(std::string(R"({"text_config": )") + kConfig + "}", "c");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model.value().dims.num_heads, 128);
}

TEST(Models, RefusesWithTheField) {
  const auto message = [](const std::string& text) {
    return parse_model_config(text, "c").status().message();
  };
  EXPECT_EQ(message(replaced(kConfig, "\"kv_lora_rank\": 512,", "")),
            "c: kv_lora_rank: must be a whole number, got nothing");
  EXPECT_EQ(message(replaced(kConfig, "\"v_head_dim\": 128", "\"v_head_dim\": -128")),
            "c: v_head_dim: must be 1 to 2147483647, got '-128'");
  EXPECT_EQ(message(replaced(kConfig, "\"v_head_dim\": 128", "\"v_head_dim\": 18446744073709551615")),
            "c: v_head_dim: must be 1 to 2147483647, got '18446744073709551615'");
  EXPECT_EQ(message(replaced(kConfig, "\"v_head_dim\": 128", "\"v_head_dim\": 130")),
            "c: v_head_dim: must be a positive multiple of 16, got 130");
  EXPECT_EQ(message(replaced(kConfig, "\"yarn\"", "\"odd\"")),
            "c: rope_scaling.type: must be one of default, dynamic, linear, llama3, longrope, su, yarn, got "
            "'\"odd\"'");
  EXPECT_EQ(message(replaced(kConfig, "\"factor\": 40", "\"factor\": \"x\"")),
            "c: rope_scaling.factor: must be a number >= 0, got '\"x\"'");
  EXPECT_EQ(message("[1]"), "c: file: must hold one JSON object at most 64 levels deep, got something else");
  EXPECT_EQ(message(std::string(100000, '[')),
            "c: file: must hold one JSON object at most 64 levels deep, got something else");
  EXPECT_TRUE(
      load_model("no-such-model").status().message().starts_with("model: must be one of deepseek-v2-lite"));
}

TEST(Models, ShardsHeadsEvenly) {
  const MlaDims dims = load_model("deepseek-v3").value().dims;
  EXPECT_EQ(shard_heads(dims, 8).value().num_heads, 16);
  EXPECT_EQ(shard_heads(dims, 3).status().message(), "tp: must be a divisor of the model's 128 heads, got 3");
  EXPECT_FALSE(shard_heads(dims, 0).ok());
}

}  // namespace
}  // namespace mlaprefill
