// The plan: host lengths in, one immutable printable value out, once per forward pass.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mlaprefill/dims.h"
#include "mlaprefill/status.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill {

/// Host view of a block table: ids of cache blocks (pages), request r's i-th block at data[r * row_stride +
/// i]. Columns past ceil(context_len / block_size) are never read, nor in modes bridge and min_continuation
/// the row of a request without new tokens.
struct BlockTable {
  const int32_t* data = nullptr;
  int64_t rows = 0;  ///< R, padded requests included
  int64_t cols = 0;
  int64_t row_stride = 0;  ///< in elements, >= cols
};

/// One ragged prefill batch, as host lengths. Spans are not owned and only read during make_plan. A padded
/// request (no new tokens) stands in every field.
struct RaggedBatch {
  std::span<const int32_t> query_start_loc;  ///< [R + 1], starts at 0, non-decreasing; R may be 0
  std::span<const int32_t> context_lens;     ///< [R] cached tokens of each request, >= 0
  /// [R] or empty. When given, request r has query_lens[r] <= query_start_loc[r+1] - query_start_loc[r] new
  /// tokens and the rows after them are padding that is never read or written.
  std::span<const int32_t> query_lens;
  /// [R] or empty. When given, seq_lens[r] must equal context_lens[r] + new tokens of r.
  std::span<const int32_t> seq_lens;
  BlockTable block_table;         ///< needed by a layer run when any context exists
  int32_t block_size = 0;         ///< tokens in a cache block; required with a block table and in vllm modes
  int64_t num_cache_blocks = -1;  ///< when >= 0, every used block id is checked to be below it
};

enum class PlanMode : uint8_t { kBridge, kMinContinuation, kVllm, kEvenSplit };
enum class PassKind : uint8_t { kContext, kNew, kJoint };
enum class Verdict : uint8_t { kActive, kMixed, kEmpty };

std::string_view to_string(PlanMode mode);
std::string_view to_string(PassKind kind);
std::string_view to_string(Verdict verdict);
Result<PlanMode> parse_plan_mode(std::string_view name);

/// What the planner needs to know of the device that will run the plan.
struct DeviceProperties {
  int32_t num_processors = 1;  ///< SMs of a GPU, what tiles are spread over; of no effect for a CPU
  int32_t query_tile_tokens =
      0;  ///< rows of a query tile; 0: the backend schedules by itself, no tiles in the plan
  int32_t key_tile_tokens =
      64;  ///< keys the attention kernel takes at once; cuts of `invariant` are multiples of it
  int32_t row_alignment_rows = 1;  ///< workspace row at which every span starts is a multiple of this
};

/// Bounds of a family of plans: for a size query before any batch is known, and for captured graphs.
struct PlanBounds {
  int64_t max_requests = 0;
  int64_t max_query_rows = 0;            ///< query_start_loc[R], padding between requests included
  int64_t max_new_tokens_pass_rows = 0;  ///< modes vllm and even_split: most new tokens of a step; else 0
  int64_t max_passes = 0;                ///< passes of a plan; required for a device with query tiles
  int32_t block_size =
      0;  ///< the cache's; required in modes vllm and even_split, else 0 stands for the worst
};

struct PlanOptions {
  PlanMode mode = PlanMode::kBridge;
  /// Rows one pass may expand. Two things may take more: the pass of new tokens of modes vllm and even_split,
  /// and in those modes a workspace below one block (even_split: one a request), which is raised to it.
  int64_t workspace_tokens = 65536;
  bool strict = false;     ///< refuse batches and passes with inactive rows, as the published repair does
  bool invariant = false;  ///< results bitwise independent of workspace size and of other requests
  /// Dtype of q and of expanded K and V: bf16, f16 or f32. A layer run with another q is refused.
  DType working_dtype = DType::kBF16;
  int64_t max_requests = int64_t{1} << 24;
  int64_t max_query_tokens = (int64_t{1} << 31) - 1;
  int64_t max_context_tokens_per_request = (int64_t{1} << 31) - 1;
  /// When set, the plan has exactly bounds->max_passes passes (empty ones at the end), every pass is launched
  /// with workspace_tokens rows and the workspace layout is that of the bounds: a device graph captured with
  /// one plan serves every other plan of the same options. A batch beyond the bounds is refused, and so are
  /// bounds in modes vllm and even_split, whose pass of new tokens may exceed workspace_tokens.
  std::optional<PlanBounds> bounds = std::nullopt;
};

/// Keys [key_begin, key_end) of one request, expanded at workspace rows row_begin.. of its pass.
/// Key positions count from the request's first cached token; new token i has position context_len + i.
struct Span {
  int64_t key_begin = 0;
  int64_t key_end = 0;
  int64_t row_begin = 0;
  int32_t request = 0;
  bool continuation = false;  ///< an earlier pass of the same kind holds earlier keys of this request
  bool first = false;         ///< has keys, and they start the request's online softmax
  bool last = false;          ///< has keys, and they end it: normalised output and LSE are written

  int64_t length() const { return key_end - key_begin; }
};

/// Spans [span_begin, span_end) of Plan::spans, expanded and attended together.
struct Pass {
  PassKind kind = PassKind::kJoint;
  int64_t rows = 0;  ///< workspace rows, alignment included
  int64_t span_begin = 0;
  int64_t span_end = 0;
  int64_t tile_begin = 0;
  int64_t tile_end = 0;
  bool all_rows_active = true;  ///< every request this pass names has a query and a key in it
};

/// Query rows [query_begin, query_begin + query_rows) of a span's request; a unit of device work for each
/// head. Queries that see no key of a span have no tile in it, unless the span is their last: then
/// key_tiles may be 0 and the tile only writes the result.
struct Tile {
  int64_t span = 0;  ///< index into Plan::spans
  int64_t query_begin = 0;
  int32_t query_rows = 0;
  int32_t key_tiles =
      0;  ///< key tiles that hold a visible key: the cost, tiles are sorted by it, largest first
};

/// Where things lie in the caller's workspace of a composed run. Offsets are multiples of 256.
struct WorkspaceLayout {
  int64_t metadata_offset_bytes = 0;  ///< what Backend::upload writes
  int64_t metadata_bytes = 0;         ///< 0 for a host backend (query_tile_tokens == 0)
  int64_t latent_offset_bytes = 0;    ///< [max rows of a pass, kv_lora_rank + rope] in the working dtype
  int64_t expanded_offset_bytes = 0;  ///< [max rows of a pass, num_heads, nope + v] in the working dtype
  int64_t state_out_offset_bytes =
      0;  ///< [query tokens, num_heads, v] float32, only when a request spans passes
  int64_t state_max_offset_bytes = 0;  ///< [num_heads, query tokens] float32
  int64_t state_sum_offset_bytes = 0;  ///< [num_heads, query tokens] float32
  int64_t partials_offset_bytes = 0;   ///< [max_kv_splits, query_tile_tokens, v + 8] float32
  int64_t max_kv_splits = 0;  ///< splits of keys a pass may have; 0 for `invariant` and for short keys
  int64_t total_bytes = 0;
};

/// Arithmetic of one layer under this plan. FLOP count visible (query, key) pairs only.
struct PlanCost {
  int64_t expanded_rows = 0;
  int64_t visible_pairs = 0;  ///< for one head
  double attention_flop = 0;  ///< 2 * (qk_head_dim + v_head_dim) * num_heads * visible_pairs
  double expand_flop = 0;     ///< 2 * kv_lora_rank * (nope + v) * num_heads * expanded_rows
};

/// Everything a backend needs to run layers on one batch. Owns its data; never changed after make_plan.
struct Plan {
  MlaDims dims;
  PlanOptions options;
  DeviceProperties device;
  int32_t num_requests = 0;
  int64_t num_query_rows = 0;            ///< query_start_loc[R], padding between requests included
  std::vector<int32_t> query_start_loc;  ///< [R + 1]
  std::vector<int32_t> query_lens;       ///< [R]
  std::vector<int32_t> context_lens;     ///< [R]
  int32_t longest_context_tokens = 0;    ///< the largest of context_lens
  int32_t block_size = 0;
  std::vector<int64_t> block_begin;   ///< [R + 1] into blocks; empty without a block table
  std::vector<int32_t> blocks;        ///< the used block ids of every request, in order
  int32_t highest_block = -1;         ///< the largest of blocks
  Verdict verdict = Verdict::kEmpty;  ///< on the new tokens
  std::vector<Pass> passes;
  std::vector<Span> spans;
  std::vector<Tile> tiles;
  WorkspaceLayout workspace;
  PlanCost cost;
};

/// Validates the batch and plans one forward pass. Pure: same input, same plan; no clock, environment or
/// device. Takes time and memory linear in requests, used blocks, spans and tiles. Refusals name the field,
/// the index and the value: kInvalidArgument (malformed or inconsistent), kOutOfRange (block table),
/// kLimitExceeded (limits, sizes, a workspace too small for one cut), kInactiveRows (`strict`), kUnsupported
/// (bounds).
Result<Plan> make_plan(const MlaDims& dims, const RaggedBatch& batch, const PlanOptions& options = {},
                       const DeviceProperties& device = {});

/// Bytes that suffice for every plan of these dims, options and device within the bounds.
Result<int64_t> workspace_upper_bound_bytes(const MlaDims& dims, const PlanOptions& options,
                                            const DeviceProperties& device, const PlanBounds& bounds);

/// 64-bit hash of the plan's content, equal for equal plans on every machine.
uint64_t fingerprint(const Plan& plan);

/// A table for people.
std::string to_text(const Plan& plan);
/// One JSON object, schema "mlaprefill.plan/1" (docs/cli.md).
std::string to_json(const Plan& plan);

}  // namespace mlaprefill
