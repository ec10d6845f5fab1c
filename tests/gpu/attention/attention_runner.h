// Runs the Hopper attention kernel without the rest of the backend: uploads a schedule, encodes the tensor
// maps, launches. For tests and benchmarks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>
#include <string>

#include "backend/sm90/attention_launch.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::sm90 {

/// A [rows, heads, columns] device tensor; strides in elements.
struct DeviceTensor {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

struct AttentionCall {
  KernelDims dims = KernelDims::k192x128;
  Element element = Element::kBF16;
  int32_t num_heads = 1;
  int32_t kv_heads = 1;
  DeviceTensor q, k_nope, k_rope, v, out;
  bool rope_per_head = false;
  bool out_is_f32 = false;
  float* lse = nullptr;
  int64_t lse_row_stride = 1;
  int64_t lse_head_stride = 0;
  float lse_unit = 1.0f;  ///< 1 for natural logarithms, log2(e) for base 2
  float* state_out = nullptr;
  float* state_max = nullptr;
  float* state_sum = nullptr;
  int64_t state_rows = 0;
  float scale = 1.0f;
};

inline constexpr float kNaturalLse = 1.0f;
inline constexpr float kLog2Lse = 1.4426950408889634f;

/// Owns the device copy of one schedule.
class AttentionRunner {
 public:
  /// Empty `error` on success.
  AttentionRunner(const AttentionCall& call, std::span<const AttentionSpan> spans, std::string& error);
  ~AttentionRunner();
  AttentionRunner(const AttentionRunner&) = delete;
  AttentionRunner& operator=(const AttentionRunner&) = delete;

  cudaError_t launch(cudaStream_t stream) const;

 private:
  AttentionCall call_;
  AttentionParams params_{};
  void* metadata_ = nullptr;
  int32_t max_clusters_ = 0;
};

}  // namespace mlaprefill::sm90
