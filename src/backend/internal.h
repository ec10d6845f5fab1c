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

Result<std::unique_ptr<Backend>> open_reference_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> open_cpu_backend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> open_sm90_backend(const BackendOptions& options);
BackendInfo sm90_backend_info();

}  // namespace mlaprefill
