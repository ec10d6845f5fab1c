// A whole MLA layer on random inputs, over many plans, held to the oracle.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mlaprefill/layer.h"
#include "verify/report.h"

namespace mlaprefill::verify {

/// How a layer run is planned and taken.
struct LayerVariant {
  PlanMode mode = PlanMode::kBridge;
  int64_t workspace_tokens = 65536;
  bool invariant = false;
  LayerPath path = LayerPath::kComposed;
};

struct LayerCase {
  struct Request {
    int32_t queries;
    int32_t context;
  };

  std::string name{};
  MlaDims dims{};
  std::vector<Request> requests{};
  DType dtype = DType::kBF16;  ///< of q and the new latents, and of kv_b_proj
  DType out_dtype = DType::kBF16;
  std::optional<DType> weight_dtype{};  ///< of kv_b_proj, when it is another
  DType cache_dtype = DType::kBF16;
  float cache_scale = 1.0f;
  int32_t block_size = 16;
  int32_t padding_rows = 0;  ///< query rows of no request after each request
  LseLayout lse_layout = LseLayout::kHeadMajor;
  LseBase lse_base = LseBase::kNatural;
  bool sliced = false;                   ///< q, latents and out are slices of wider rows
  std::vector<LayerVariant> variants{};  ///< empty: default_variants()
};

/// Every mode, workspaces of one tile up to the whole batch, fused and composed, invariant or not.
std::vector<LayerVariant> default_variants();

/// The inputs of a case, made once and given to any number of backends. Unused cache slots, page tails,
/// padding rows and unused block table columns are poisoned.
class LayerInputs {
 public:
  explicit LayerInputs(const LayerCase& layer_case);

  LayerCase config;
  HostTensor q;
  HostTensor kv_latent;
  HostTensor k_rope;
  HostTensor cache;
  HostTensor kv_b_proj;
  std::vector<int32_t> query_start_loc;
  std::vector<int32_t> query_lens;
  std::vector<int32_t> context_lens;
  std::vector<int32_t> block_table;  ///< [R, block_table_cols]
  int64_t block_table_cols = 0;

  RaggedBatch batch() const;
  Result<Plan> plan(const LayerVariant& variant, const DeviceProperties& device) const;
  Outputs outputs() const;
  std::vector<RowRange> written() const;
  /// Host views of the inputs, for the oracle.
  LayerTensors host_tensors() const;
};

/// The oracle's answer for these heads.
std::vector<ExpectedRow> expect(const LayerInputs& inputs, std::span<const int64_t> heads);

/// One run, nothing checked but inputs and guards.
Outputs run_layer_once(const LayerInputs& inputs, const LayerVariant& variant, const Backend& backend,
                       Report& report);

/// Runs every variant; the invariant ones of one path must agree bitwise.
Report run_layer(const LayerInputs& inputs, std::span<const ExpectedRow> expected, const Backend& backend);

}  // namespace mlaprefill::verify
