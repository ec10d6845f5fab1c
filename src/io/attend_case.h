// Attention cases in safetensors files: one MLA layer, or plain ragged attention (schema in docs/cli.md).
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "io/owned_tensor.h"
#include "io/safetensors_file.h"
#include "mlaprefill/dims.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

/// What a case holds beside tensors. Values given here win over the strings of the file's `__metadata__`.
struct CaseOptions {
  std::optional<double> softmax_scale = {};
  std::optional<bool> causal = {};
  std::optional<int32_t> qk_nope_head_dim = {};
};

struct LayerCase {
  MlaDims dims;
  std::vector<int32_t> query_start_loc;  ///< [R + 1]
  std::vector<int32_t> context_lens;     ///< [R]
  OwnedTensor q;                         ///< [T, H, nope + rope]
  OwnedTensor kv_latent;                 ///< [T, L]
  OwnedTensor k_rope;                    ///< [T, rope]
  OwnedTensor kv_b_proj;                 ///< [H * (nope + v), L]
  OwnedTensor kv_cache;                  ///< [blocks, block_size, L + rope or 656]; absent without context
  float kv_scale = 1.0f;
  std::vector<int32_t> block_table;  ///< [R, block_table_cols]
  int64_t block_table_cols = 0;
};

struct PlainCase {
  OwnedTensor q;  ///< [Tq, H, Dqk]
  OwnedTensor k;  ///< [Tk, Hkv, Dqk]
  OwnedTensor v;  ///< [Tk, Hkv, Dv]
  std::vector<int32_t> cu_seqlens_q;
  std::vector<int32_t> cu_seqlens_k;
  bool causal = true;
  double softmax_scale = 0.0;
};

using AttendCase = std::variant<LayerCase, PlainCase>;

/// Reads a case and checks that its tensors fit each other. Lengths and block ids are checked by make_plan
/// and make_attention_spans when the case is run. Memory used is proportional to the file.
Result<AttendCase> load_attend_case(const SafetensorsFile& file, const CaseOptions& options);

}  // namespace mlaprefill
