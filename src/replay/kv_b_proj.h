// Real up-projection weights from a model's safetensors file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlaprefill/dims.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

/// kv_b_proj of a layer in bf16, rows of the first `num_heads` heads: [num_heads * (nope + v), kv_lora_rank].
/// The file's tensor `...layers.LAYER.self_attn.kv_b_proj.weight` is bf16, f16 or f32, or e4m3 beside a
/// float32
/// `..._scale_inv` with one scale for each 128 x 128 values. `dims` are those of the whole model.
Result<std::vector<uint16_t>> load_kv_b_proj(const std::string& path, int64_t layer, const MlaDims& dims,
                                             int64_t num_heads);

}  // namespace mlaprefill
