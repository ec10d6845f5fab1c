// One MLA prefill layer over a plan: the backend's fused layer, or expand + attend over the plan's passes.
#pragma once

#include <cstdint>
#include <memory>

#include "mlaprefill/backend.h"
#include "mlaprefill/plan.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

enum class LayerPath : uint8_t {
  kAuto,      ///< fused where the backend has a fused layer, else composed
  kFused,     ///< refuse when there is no fused layer
  kComposed,  ///< expand + attend over the plan's passes
};

/// Keeps a layer's prepared weight. Copyable handle; run is const and re-entrant. The backend must outlive
/// it.
class MlaLayer {
 public:
  /// Prepares kv_b_proj [num_heads * (nope + v), kv_lora_rank] for the backend.
  static Result<MlaLayer> create(const Backend& backend, const MlaDims& dims, ConstTensor kv_b_proj);

  /// Computes out (and LSE) of every new token of the plan's batch. On a device backend it only enqueues, and
  /// Backend::upload must have written this plan to the workspace. The composed path needs workspace of
  /// plan.workspace.total_bytes; the fused path needs none.
  Status run(const Plan& plan, const LayerTensors& tensors, Workspace workspace,
             LayerPath path = LayerPath::kAuto, Stream stream = {}) const;

  /// The path kAuto takes.
  LayerPath path() const;

 private:
  MlaLayer(const Backend& backend, const MlaDims& dims, std::shared_ptr<const LayerWeights> weights)
      : backend_(&backend), dims_(dims), weights_(std::move(weights)) {}

  const Backend* backend_;
  MlaDims dims_;
  std::shared_ptr<const LayerWeights> weights_;
};

}  // namespace mlaprefill
