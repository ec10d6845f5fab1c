#include <array>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/parallel.h"
#include "backend/latent_cache.h"
#include "core/tensor_access.h"

namespace mlaprefill::cpu {
namespace {

constexpr int64_t kMaxLatentDim = 1024 + 128;
constexpr int64_t kRowsPerTask = 64;

}  // namespace

void append(const AppendArgs& args) {
  const int64_t kv_lora_rank = args.kv_latent.shape[1];
  const int64_t rope = args.k_rope.shape[1];
  const int64_t block_size = args.cache.data.shape[1];
  const auto append_rows = [&](int64_t begin, int64_t end) {
    std::array<float, kMaxLatentDim> values;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t slot = args.slot_mapping[i];
      if (slot < 0) continue;
      load_floats(element_address(args.kv_latent, i), args.kv_latent.dtype, kv_lora_rank, values.data());
      load_floats(element_address(args.k_rope, i), args.k_rope.dtype, rope, values.data() + kv_lora_rank);
      write_latent_row(args.cache, slot / block_size, slot % block_size, kv_lora_rank + rope, values.data());
    }
  };
  parallel_ranges(args.kv_latent.shape[0], kRowsPerTask, append_rows);
}

}  // namespace mlaprefill::cpu
