// The CPU backend: kernels of one ISA level, worker threads and the scratch memory they reuse.
#pragma once

#include <string>

#include "backend/cpu/call.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/workers.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {

class CpuBackend final : public Backend {
 public:
  CpuBackend(IsaChoice isa, int32_t num_threads);

  std::string_view name() const override { return "cpu"; }
  std::string description() const override;
  std::string_view isa() const override { return to_string(isa_.level); }
  DeviceProperties device_properties() const override;
  std::vector<std::string> supports(const SupportQuery& query) const override;

  Status attention(const AttentionArgs& args, Stream stream) const override;
  Status merge(const MergeArgs& args, Stream stream) const override;
  Status append(const AppendArgs& args, Stream stream) const override;
  Result<std::shared_ptr<const LayerWeights>> prepare_weights(const MlaDims& dims,
                                                              ConstTensor kv_b_proj) const override;
  Status expand(const ExpandArgs& args, Stream stream) const override;
  bool has_fused_layer() const override { return true; }
  Status fused_layer(const FusedLayerArgs& args, Stream stream) const override;

 private:
  IsaChoice isa_;
  mutable CallResources resources_;
};

}  // namespace mlaprefill::cpu
