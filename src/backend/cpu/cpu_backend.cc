#include "backend/cpu/cpu_backend.h"

#include <new>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/weights.h"
#include "backend/internal.h"
#include "core/error.h"

namespace mlaprefill {
namespace cpu {
namespace {

constexpr int32_t kMaxThreads = 4096;

// Runs an operation whose only way to fail is that memory for scratch cannot be had.
template <typename Operation>
Status run(const Operation& operation) {
  try {
    operation();
  } catch (const std::bad_alloc&) {
    return error(StatusCode::kLimitExceeded,
                 "scratch: must fit the host's memory, got an allocation failure");
  }
  return {};
}

// Weights are those a CPU backend of the same level prepared, for a layer of the plan's dims.
Status check_weights(const LayerWeights* weights, IsaLevel level, const MlaDims& dims) {
  const auto* prepared = dynamic_cast<const CpuWeights*>(weights);
  if (prepared == nullptr || prepared->level() != level) {
    return invalid("weights: must be prepared by this backend, got another's");
  }
  const MlaDims& own = prepared->dims();
  if (own.num_heads != dims.num_heads || own.kv_lora_rank != dims.kv_lora_rank ||
      own.qk_nope_head_dim != dims.qk_nope_head_dim || own.v_head_dim != dims.v_head_dim) {
    return invalid("weights: must be prepared for the plan's dims, got heads {}, rank {}, nope {}, v {}",
                   own.num_heads, own.kv_lora_rank, own.qk_nope_head_dim, own.v_head_dim);
  }
  return {};
}

}  // namespace

CpuBackend::CpuBackend(IsaChoice isa, int32_t num_threads)
    : isa_(std::move(isa)), resources_(isa_.level, num_threads) {}

std::string CpuBackend::description() const {
  const bool bf16 = bf16_operand(isa_.level) == Operand::kBF16;
  std::string text = fmt::format("cpu, {} ({} tiles for bf16, float32 tiles for f16 and f32), {} thread{}",
                                 to_string(isa_.level), bf16 ? "bf16" : "float32", resources_.workers.size(),
                                 resources_.workers.size() == 1 ? "" : "s");
  if (!isa_.why.empty()) text += "; " + isa_.why;
  return text;
}

DeviceProperties CpuBackend::device_properties() const {
  DeviceProperties properties;
  properties.num_processors = resources_.workers.size();
  properties.key_tile_tokens = kPanelColumns;
  return properties;
}

std::vector<std::string> CpuBackend::supports(const SupportQuery& query) const {
  return reasons_against(query);
}

Status CpuBackend::attention(const AttentionArgs& args, Stream) const {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  return run([&] { cpu::attention(resources_, args); });
}

Status CpuBackend::merge(const MergeArgs& args, Stream) const {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  return run([&] { resources_.workers.execute([&] { cpu::merge(args); }); });
}

Status CpuBackend::append(const AppendArgs& args, Stream) const {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  MLAPREFILL_RETURN_IF_ERROR(validate_host_slots(args));
  return run([&] { resources_.workers.execute([&] { cpu::append(args); }); });
}

Result<std::shared_ptr<const LayerWeights>> CpuBackend::prepare_weights(const MlaDims& dims,
                                                                        ConstTensor kv_b_proj) const {
  MLAPREFILL_RETURN_IF_ERROR(validate_kv_b_proj(dims, kv_b_proj));
  std::shared_ptr<const LayerWeights> weights;
  MLAPREFILL_RETURN_IF_ERROR(
      run([&] { weights = std::make_shared<CpuWeights>(isa_.level, dims, kv_b_proj); }));
  return weights;
}

Status CpuBackend::expand(const ExpandArgs& args, Stream) const {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  MLAPREFILL_RETURN_IF_ERROR(check_weights(args.weights, isa_.level, args.plan->dims));
  return run([&] { cpu::expand(resources_, args); });
}

Status CpuBackend::fused_layer(const FusedLayerArgs& args, Stream) const {
  MLAPREFILL_RETURN_IF_ERROR(validate(args));
  MLAPREFILL_RETURN_IF_ERROR(check_weights(args.weights, isa_.level, args.plan->dims));
  return run([&] { cpu::fused_layer(resources_, args); });
}

}  // namespace cpu

Result<std::unique_ptr<Backend>> open_cpu_backend(const BackendOptions& options) {
  if (options.num_threads < 0 || options.num_threads > cpu::kMaxThreads) {
    return invalid("num_threads: must lie in 0 .. {}, got {}", cpu::kMaxThreads, options.num_threads);
  }
  Result<cpu::IsaChoice> isa = cpu::choose_isa(options.isa, cpu::read_cpu_facts());
  if (!isa.ok()) return isa.status();
  return std::unique_ptr<Backend>(
      std::make_unique<cpu::CpuBackend>(std::move(isa).value(), options.num_threads));
}

}  // namespace mlaprefill
