// Merging of partial attention results on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "mlaprefill/backend.h"

namespace mlaprefill::sm90 {

inline constexpr int64_t kMaxPartials = 256;

/// At most kMaxPartials partials; they travel as kernel parameters.
cudaError_t launch_merge(const MergeArgs& args, int32_t processors, cudaStream_t stream);

}  // namespace mlaprefill::sm90
