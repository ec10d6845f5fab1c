// Every check on a planner's input, each with the index and the value in its message.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/checked.h"
#include "core/error.h"
#include "plan/steps.h"

namespace mlaprefill {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int32_t kMaxTileTokens = 1 << 16;
constexpr int32_t kMaxBlockTokens = 1 << 20;
constexpr int64_t kMaxRowStride = int64_t{1} << 31;

template <typename... Args>
Status limit(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::kLimitExceeded, format, std::forward<Args>(args)...);
}

template <typename... Args>
Status out_of_range(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::kOutOfRange, format, std::forward<Args>(args)...);
}

Status check_between(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least) return invalid("{}: must be >= {}, got {}", name, least, value);
  if (value > most) return limit("{}: must be <= {}, got {}", name, most, value);
  return {};
}

Status check_entries(const char* name, size_t entries, size_t requests) {
  if (entries == requests) return {};
  return invalid("{}: must have {} entries, one less than query_start_loc, got {}", name, requests, entries);
}

Status check_query_start_loc(std::span<const int32_t> loc, const PlanOptions& options) {
  if (loc.empty()) return invalid("query_start_loc: must have at least 1 entry, got 0");
  if (loc[0] != 0) return invalid("query_start_loc[0]: must be 0, got {}", loc[0]);
  const int64_t requests = static_cast<int64_t>(loc.size()) - 1;
  const int64_t most_requests = std::min(options.max_requests, kMaxInt32);
  if (requests > most_requests) {
    return limit("query_start_loc: must have at most max_requests + 1 = {} entries, got {}",
                 most_requests + 1, loc.size());
  }
  for (size_t i = 1; i < loc.size(); ++i) {
    if (loc[i] < loc[i - 1]) {
      return invalid("query_start_loc[{}]: must be >= query_start_loc[{}] = {}, got {}", i, i - 1, loc[i - 1],
                     loc[i]);
    }
  }
  if (loc.back() > options.max_query_tokens) {
    return limit("query_start_loc[{}]: must be <= max_query_tokens = {}, got {}", requests,
                 options.max_query_tokens, loc.back());
  }
  return {};
}

Status check_query_lens(const RaggedBatch& batch) {
  const auto loc = batch.query_start_loc;
  MLAPREFILL_RETURN_IF_ERROR(check_entries("query_lens", batch.query_lens.size(), loc.size() - 1));
  for (size_t r = 0; r < batch.query_lens.size(); ++r) {
    const int32_t rows = loc[r + 1] - loc[r];
    if (batch.query_lens[r] < 0)
      return invalid("query_lens[{}]: must be >= 0, got {}", r, batch.query_lens[r]);
    if (batch.query_lens[r] > rows) {
      return invalid("query_lens[{}]: must be <= query_start_loc[{}] - query_start_loc[{}] = {}, got {}", r,
                     r + 1, r, rows, batch.query_lens[r]);
    }
  }
  return {};
}

int32_t query_len(const RaggedBatch& batch, size_t r) {
  if (!batch.query_lens.empty()) return batch.query_lens[r];
  return batch.query_start_loc[r + 1] - batch.query_start_loc[r];
}

Status check_context_lens(const RaggedBatch& batch, const PlanOptions& options) {
  MLAPREFILL_RETURN_IF_ERROR(
      check_entries("context_lens", batch.context_lens.size(), batch.query_start_loc.size() - 1));
  for (size_t r = 0; r < batch.context_lens.size(); ++r) {
    const int64_t context = batch.context_lens[r];
    if (context < 0) return invalid("context_lens[{}]: must be >= 0, got {}", r, context);
    if (context > options.max_context_tokens_per_request) {
      return limit("context_lens[{}]: must be <= max_context_tokens_per_request = {}, got {}", r,
                   options.max_context_tokens_per_request, context);
    }
    const int64_t most = kMaxInt32 - query_len(batch, r);
    if (context > most) {
      return limit("context_lens[{}]: must be <= {} - {} new tokens, got {}", r, kMaxInt32,
                   query_len(batch, r), context);
    }
  }
  return {};
}

Status check_seq_lens(const RaggedBatch& batch) {
  MLAPREFILL_RETURN_IF_ERROR(
      check_entries("seq_lens", batch.seq_lens.size(), batch.query_start_loc.size() - 1));
  for (size_t r = 0; r < batch.seq_lens.size(); ++r) {
    const int32_t context = batch.context_lens[r];
    const int32_t query = query_len(batch, r);
    if (batch.seq_lens[r] != context + query) {
      return invalid("seq_lens[{}]: must be context_lens[{}] + new tokens = {} + {} = {}, got {}", r, r,
                     context, query, context + query, batch.seq_lens[r]);
    }
  }
  return {};
}

bool has_block_table(const RaggedBatch& batch) {
  const BlockTable& table = batch.block_table;
  return table.data != nullptr || table.rows != 0 || table.cols != 0;
}

Status check_block_size(const RaggedBatch& batch, const PlanOptions& options) {
  if (batch.block_size < 0) return invalid("block_size: must be >= 0, got {}", batch.block_size);
  if (batch.block_size > kMaxBlockTokens) {
    return limit("block_size: must be <= {}, got {}", kMaxBlockTokens, batch.block_size);
  }
  if (batch.block_size > 0) return {};
  if (has_block_table(batch)) return invalid("block_size: must be >= 1 with a block table, got 0");
  if (reads_every_context(options.mode)) {
    return invalid("block_size: must be >= 1 in mode {}, got 0", to_string(options.mode));
  }
  return {};
}

Status check_block_table(const RaggedBatch& batch, const PlanOptions& options) {
  const BlockTable& table = batch.block_table;
  const int64_t requests = static_cast<int64_t>(batch.context_lens.size());
  if (table.rows != requests) {
    return invalid("block_table.rows: must be {}, one for each request, got {}", requests, table.rows);
  }
  if (table.cols < 0) return invalid("block_table.cols: must be >= 0, got {}", table.cols);
  if (table.rows > 1 && table.row_stride < table.cols) {
    return invalid("block_table.row_stride: must be >= block_table.cols = {}, got {}", table.cols,
                   table.row_stride);
  }
  if (table.rows > 1 && table.row_stride > kMaxRowStride) {
    return limit("block_table.row_stride: must be <= {}, got {}", kMaxRowStride, table.row_stride);
  }
  const int64_t held_tokens = std::min(table.cols, kMaxInt32) * batch.block_size;
  for (size_t r = 0; r < batch.context_lens.size(); ++r) {
    if (query_len(batch, r) == 0 && !reads_every_context(options.mode)) continue;
    if (batch.context_lens[r] > held_tokens) {
      return out_of_range("context_lens[{}]: must fit block_table.cols = {} blocks of {} tokens, got {}", r,
                          table.cols, batch.block_size, batch.context_lens[r]);
    }
    if (batch.context_lens[r] > 0 && table.data == nullptr) {
      return invalid("block_table.data: must not be null with context_lens[{}] = {}, got null", r,
                     batch.context_lens[r]);
    }
  }
  return {};
}

Status name_bad_block(const RaggedBatch& batch, int64_t row, std::span<const int32_t> ids, int32_t last_id) {
  const auto bad = std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || id > last_id; });
  const auto col = bad - ids.begin();
  if (*bad < 0) return out_of_range("block_table[{}][{}]: must be >= 0, got {}", row, col, *bad);
  return out_of_range("block_table[{}][{}]: must be < num_cache_blocks = {}, got {}", row, col,
                      batch.num_cache_blocks, *bad);
}

Status copy_blocks(const RaggedBatch& batch, Plan& plan) {
  const size_t requests = plan.context_lens.size();
  plan.block_begin.assign(requests + 1, 0);
  for (size_t r = 0; r < requests; ++r) {
    const bool used = plan.query_lens[r] > 0 || reads_every_context(plan.options.mode);
    plan.block_begin[r + 1] =
        plan.block_begin[r] + (used ? ceil_div(plan.context_lens[r], batch.block_size) : 0);
  }
  plan.blocks.reserve(static_cast<size_t>(plan.block_begin.back()));
  const bool counted = batch.num_cache_blocks >= 0 && batch.num_cache_blocks <= kMaxInt32;
  const int32_t last_id = static_cast<int32_t>(counted ? batch.num_cache_blocks - 1 : kMaxInt32);
  for (size_t r = 0; r < requests; ++r) {
    const auto count = static_cast<size_t>(plan.block_begin[r + 1] - plan.block_begin[r]);
    if (count == 0) continue;
    const int64_t row = static_cast<int64_t>(r);
    const std::span ids(batch.block_table.data + row * batch.block_table.row_stride, count);
    uint32_t signs = 0;  // the top bit: some id is negative or greater than last_id
    int32_t highest = plan.highest_block;
    for (int32_t id : ids) {
      signs |= static_cast<uint32_t>(id) | (static_cast<uint32_t>(last_id) - static_cast<uint32_t>(id));
      highest = std::max(highest, id);
    }
    if (signs >> 31 != 0) return name_bad_block(batch, row, ids, last_id);
    plan.highest_block = highest;
    plan.blocks.insert(plan.blocks.end(), ids.begin(), ids.end());
  }
  return {};
}

}  // namespace

Status validate(const PlanOptions& options) {
  if (options.mode > PlanMode::kEvenSplit) {
    return invalid("mode: must be bridge, min_continuation, vllm or even_split, got {}",
                   static_cast<int>(options.mode));
  }
  constexpr int64_t no_limit = std::numeric_limits<int64_t>::max();
  MLAPREFILL_RETURN_IF_ERROR(check_between("workspace_tokens", options.workspace_tokens, 1, no_limit));
  MLAPREFILL_RETURN_IF_ERROR(check_between("max_requests", options.max_requests, 0, no_limit));
  MLAPREFILL_RETURN_IF_ERROR(check_between("max_query_tokens", options.max_query_tokens, 0, no_limit));
  MLAPREFILL_RETURN_IF_ERROR(
      check_between("max_context_tokens_per_request", options.max_context_tokens_per_request, 0, no_limit));
  const DType dtype = options.working_dtype;
  if (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32) {
    return invalid("working_dtype: must be bf16, f16 or f32, got {}", to_string(dtype));
  }
  if (options.bounds.has_value() && reads_every_context(options.mode)) {
    return error(StatusCode::kUnsupported,
                 "bounds: must be unset outside modes bridge and min_continuation, got {}",
                 to_string(options.mode));
  }
  return {};
}

Status validate(const DeviceProperties& device) {
  MLAPREFILL_RETURN_IF_ERROR(check_between("num_processors", device.num_processors, 1, kMaxInt32));
  MLAPREFILL_RETURN_IF_ERROR(check_between("query_tile_tokens", device.query_tile_tokens, 0, kMaxTileTokens));
  MLAPREFILL_RETURN_IF_ERROR(check_between("key_tile_tokens", device.key_tile_tokens, 1, kMaxTileTokens));
  return check_between("row_alignment_rows", device.row_alignment_rows, 1, kMaxTileTokens);
}

Status validate(const RaggedBatch& batch, const PlanOptions& options) {
  MLAPREFILL_RETURN_IF_ERROR(check_query_start_loc(batch.query_start_loc, options));
  if (!batch.query_lens.empty()) MLAPREFILL_RETURN_IF_ERROR(check_query_lens(batch));
  MLAPREFILL_RETURN_IF_ERROR(check_context_lens(batch, options));
  if (!batch.seq_lens.empty()) MLAPREFILL_RETURN_IF_ERROR(check_seq_lens(batch));
  MLAPREFILL_RETURN_IF_ERROR(check_block_size(batch, options));
  return has_block_table(batch) ? check_block_table(batch, options) : Status();
}

Status validate(const PlanBounds& bounds, const PlanOptions& options, const DeviceProperties& device) {
  MLAPREFILL_RETURN_IF_ERROR(check_between("bounds.max_requests", bounds.max_requests, 0, kMaxInt32));
  MLAPREFILL_RETURN_IF_ERROR(check_between("bounds.max_query_rows", bounds.max_query_rows, 0, kMaxInt32));
  const bool passes_matter = device.query_tile_tokens > 0 || options.bounds.has_value();
  MLAPREFILL_RETURN_IF_ERROR(
      check_between("bounds.max_passes", bounds.max_passes, passes_matter ? 1 : 0, kMaxSplitSpans));
  const bool blocks_matter = reads_every_context(options.mode);
  MLAPREFILL_RETURN_IF_ERROR(
      check_between("bounds.block_size", bounds.block_size, blocks_matter ? 1 : 0, kMaxBlockTokens));
  return check_between("bounds.max_new_tokens_pass_rows", bounds.max_new_tokens_pass_rows, 0, kMaxInt32);
}

Status copy_batch(const RaggedBatch& batch, Plan& plan) {
  plan.num_requests = static_cast<int32_t>(batch.context_lens.size());
  plan.num_query_rows = batch.query_start_loc.back();
  plan.query_start_loc.assign(batch.query_start_loc.begin(), batch.query_start_loc.end());
  plan.context_lens.assign(batch.context_lens.begin(), batch.context_lens.end());
  for (int32_t context : plan.context_lens) {
    plan.longest_context_tokens = std::max(plan.longest_context_tokens, context);
  }
  plan.query_lens.resize(plan.context_lens.size());
  for (size_t r = 0; r < plan.query_lens.size(); ++r) plan.query_lens[r] = query_len(batch, r);
  plan.block_size = batch.block_size;
  return has_block_table(batch) ? copy_blocks(batch, plan) : Status();
}

}  // namespace mlaprefill
