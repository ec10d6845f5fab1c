#include "mlaprefill/dims.h"

#include <cmath>

#include "core/error.h"

namespace mlaprefill {
namespace {

Status check_dim(const char* name, int32_t value, int32_t limit) {
  if (value < 16 || value % 16 != 0)
    return invalid("{}: must be a positive multiple of 16, got {}", name, value);
  if (value > limit) {
    return error(StatusCode::kLimitExceeded, "{}: must be <= {}, got {}", name, limit, value);
  }
  return {};
}

}  // namespace

Status validate(const MlaDims& dims) {
  if (dims.num_heads < 1) return invalid("num_heads: must be >= 1, got {}", dims.num_heads);
  if (dims.num_heads > 256) {
    return error(StatusCode::kLimitExceeded, "num_heads: must be <= 256, got {}", dims.num_heads);
  }
  MLAPREFILL_RETURN_IF_ERROR(check_dim("kv_lora_rank", dims.kv_lora_rank, 1024));
  MLAPREFILL_RETURN_IF_ERROR(check_dim("qk_nope_head_dim", dims.qk_nope_head_dim, 256));
  MLAPREFILL_RETURN_IF_ERROR(check_dim("qk_rope_head_dim", dims.qk_rope_head_dim, 128));
  MLAPREFILL_RETURN_IF_ERROR(check_dim("v_head_dim", dims.v_head_dim, 256));
  if (!std::isfinite(dims.softmax_scale)) {
    return invalid("softmax_scale: must be finite, got {}", dims.softmax_scale);
  }
  return {};
}

double yarn_mscale(double factor, double mscale_all_dim) {
  return factor > 1.0 ? 0.1 * mscale_all_dim * std::log(factor) + 1.0 : 1.0;
}

double yarn_softmax_scale(int64_t qk_head_dim, double factor, double mscale_all_dim) {
  const double mscale = yarn_mscale(factor, mscale_all_dim);
  return mscale * mscale / std::sqrt(static_cast<double>(qk_head_dim));
}

}  // namespace mlaprefill
