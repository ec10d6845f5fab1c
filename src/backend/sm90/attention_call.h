// From the tensors of an attention call to the kernel's parameters.
#pragma once

#include <string>
#include <vector>

#include "backend/sm90/attention_launch.h"
#include "backend/sm90/tensor_map.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::sm90 {

/// One launch, ready to be enqueued.
struct AttentionCall {
  KernelDims dims = KernelDims::k192x128;
  Element element = Element::kBF16;
  AttentionParams params;
};

/// Why the kernel has no instance for these head dims; empty: it has one.
std::vector<std::string> reasons_against_head_dims(int64_t qk_dim, int64_t rope_dim, int64_t v_dim);

/// An uploaded schedule, in device memory.
struct DeviceSchedule {
  void* metadata = nullptr;  ///< begins with a MetadataHeader
  int64_t passes = 1;
  int64_t max_kv_splits = 0;  ///< that its arrivals have room for
  void* partials = nullptr;   ///< of the splits
};

/// Shapes must have been validated. Refuses dims, dtypes, alignments and scales the kernel does not serve.
Status make_attention_call(const AttentionArgs& args, TensorMapEncoder encoder,
                           const DeviceSchedule& schedule, AttentionCall& call);

}  // namespace mlaprefill::sm90
