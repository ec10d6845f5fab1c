// The oracle as a backend: fp64, one thread, naive on purpose and never optimised.
#include "backend/internal.h"
#include "backend/reference/operations.h"
#include "core/error.h"

namespace mlaprefill {
namespace {

Result<const reference::Weights*> own_weights(const LayerWeights* weights, const MlaDims& dims) {
  const auto* own = dynamic_cast<const reference::Weights*>(weights);
  if (own == nullptr) {
    return invalid("weights: must come from prepare_weights of the reference backend, got another's");
  }
  if (own->dims.num_heads != dims.num_heads || own->dims.kv_lora_rank != dims.kv_lora_rank ||
      own->dims.qk_nope_head_dim != dims.qk_nope_head_dim || own->dims.v_head_dim != dims.v_head_dim) {
    return invalid("weights: must be prepared for the plan's dims, got others");
  }
  return own;
}

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  std::string description() const override { return "fp64 on one thread, the oracle"; }
  DeviceProperties device_properties() const override { return {}; }
  std::vector<std::string> supports(const SupportQuery& query) const override {
    return reasons_against(query);
  }

  Status attention(const AttentionArgs& args, Stream) const override {
    MLAPREFILL_RETURN_IF_ERROR(validate(args));
    reference::attention(args);
    return {};
  }

  Status merge(const MergeArgs& args, Stream) const override {
    MLAPREFILL_RETURN_IF_ERROR(validate(args));
    reference::merge(args);
    return {};
  }

  Status append(const AppendArgs& args, Stream) const override {
    MLAPREFILL_RETURN_IF_ERROR(validate(args));
    MLAPREFILL_RETURN_IF_ERROR(validate_host_slots(args));
    reference::append(args);
    return {};
  }

  Result<std::shared_ptr<const LayerWeights>> prepare_weights(const MlaDims& dims,
                                                              ConstTensor kv_b_proj) const override {
    MLAPREFILL_RETURN_IF_ERROR(validate_kv_b_proj(dims, kv_b_proj));
    return std::shared_ptr<const LayerWeights>(std::make_shared<reference::Weights>(dims, kv_b_proj));
  }

  Status expand(const ExpandArgs& args, Stream) const override {
    MLAPREFILL_RETURN_IF_ERROR(validate(args));
    const auto weights = own_weights(args.weights, args.plan->dims);
    if (!weights.ok()) return weights.status();
    reference::expand(args, *weights.value());
    return {};
  }

  bool has_fused_layer() const override { return true; }

  Status fused_layer(const FusedLayerArgs& args, Stream) const override {
    MLAPREFILL_RETURN_IF_ERROR(validate(args));
    const auto weights = own_weights(args.weights, args.plan->dims);
    if (!weights.ok()) return weights.status();
    reference::fused_layer(args, *weights.value());
    return {};
  }
};

}  // namespace

Result<std::unique_ptr<Backend>> open_reference_backend(const BackendOptions&) {
  return std::unique_ptr<Backend>(std::make_unique<ReferenceBackend>());
}

}  // namespace mlaprefill
