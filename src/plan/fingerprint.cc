// A hash over the values of a plan, not its bytes: the same on every machine.
#include <bit>
#include <concepts>
#include <cstdint>
#include <vector>

#include "mlaprefill/plan.h"

namespace mlaprefill {
namespace {

class Hash {
 public:
  void add(uint64_t word) {
    state_ ^= word;
    state_ *= 0x9e3779b97f4a7c15U;  // odd, so that no step loses information
    state_ ^= state_ >> 32;
  }
  template <typename... Integers>
  void add_all(Integers... values) {
    (add(static_cast<uint64_t>(values)), ...);
  }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  template <std::integral Integer>
  void add(const std::vector<Integer>& values) {
    add(values.size());
    for (Integer value : values) add(static_cast<uint64_t>(value));
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325U;
};

}  // namespace

uint64_t fingerprint(const Plan& plan) {
  Hash hash;
  const MlaDims& dims = plan.dims;
  hash.add_all(dims.num_heads, dims.kv_lora_rank, dims.qk_nope_head_dim, dims.qk_rope_head_dim,
               dims.v_head_dim);
  hash.add(dims.softmax_scale);

  const PlanOptions& options = plan.options;
  hash.add_all(options.mode, options.workspace_tokens, options.strict, options.invariant,
               options.working_dtype, options.max_requests, options.max_query_tokens,
               options.max_context_tokens_per_request);

  const DeviceProperties& device = plan.device;
  hash.add_all(device.num_processors, device.query_tile_tokens, device.key_tile_tokens,
               device.row_alignment_rows);

  hash.add_all(plan.num_requests, plan.num_query_rows, plan.block_size, plan.verdict);
  hash.add(plan.query_start_loc);
  hash.add(plan.query_lens);
  hash.add(plan.context_lens);
  hash.add(plan.block_begin);
  hash.add(plan.blocks);

  hash.add_all(plan.passes.size(), plan.spans.size(), plan.tiles.size());
  for (const Pass& pass : plan.passes) {
    hash.add_all(pass.kind, pass.rows, pass.span_begin, pass.span_end, pass.tile_begin, pass.tile_end,
                 pass.all_rows_active);
  }
  for (const Span& span : plan.spans) {
    hash.add_all(span.key_begin, span.key_end, span.row_begin, span.request, span.continuation, span.first,
                 span.last);
  }
  for (const Tile& tile : plan.tiles) {
    hash.add_all(tile.span, tile.query_begin, tile.query_rows, tile.key_tiles);
  }
  hash.add(static_cast<uint64_t>(plan.workspace.total_bytes));
  return hash.value();
}

}  // namespace mlaprefill
