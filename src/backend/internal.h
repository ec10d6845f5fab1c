// What the registry, the backends and the layer share, and callers do not see.
#pragma once

#include <memory>

#include "mlaprefill/backend.h"

namespace mlaprefill {

/// Checks shapes, strides, dtypes, spans and state pointers of a call before anything is written.
Status validate(const AttentionArgs& args);
Status validate(const MergeArgs& args);
Status validate(const AppendArgs& args);
Status validate(const ExpandArgs& args);
Status validate(const FusedLayerArgs& args);

/// Slots are -1 or inside the cache. Reads slot_mapping, so only for backends whose memory is the host's.
Status validate_host_slots(const AppendArgs& args);

/// kv_b_proj is [num_heads * (nope + v), kv_lora_rank] of a float dtype with last stride 1.
Status validate_kv_b_proj(const MlaDims& dims, const ConstTensor& kv_b_proj);

/// What every backend may be asked for: dims in range, dtypes that exist. Reasons, empty: none.
std::vector<std::string> reasons_against(const SupportQuery& query);

Result<std::unique_ptr<Backend>> open_reference_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> open_cpu_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> open_sm90_backend(const BackendOptions& options);
BackendInfo sm90_backend_info();

}  // namespace mlaprefill
