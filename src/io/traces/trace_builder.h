// What every trace loader shares: rows in, one ordered Trace out.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/traces/trace.h"
#include "mlaprefill/status.h"

namespace mlaprefill {

/// A row as a loader read it, before filters and ordering.
struct TraceRow {
  static constexpr double kNoArrival = -std::numeric_limits<double>::infinity();

  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  double arrival_s = kNoArrival;  ///< on the file's own clock; kNoArrival: with the session's turn before
  double delay_s = TraceRequest::kNoDelay;
  int32_t session = TraceRequest::kNoSession;
};

class TraceBuilder {
 public:
  explicit TraceBuilder(const TraceOptions& options) : options_(options) {}

  const TraceOptions& options() const { return options_; }

  /// Number of the session of that name within `scope`, new names numbered in order of appearance.
  int32_t session(std::string_view name);

  /// Dense number of a file's 64-bit block id; ids of different scopes are different blocks.
  int64_t block(int32_t scope, uint64_t id);

  /// Appends a row whose prefix blocks are `blocks`.
  Status add(const TraceRow& row, std::span<const int64_t> blocks);

  /// Appends a row that shares its first `shared_tokens` with an earlier row of its session, for files that
  /// give only the length of the shared prefix. Returns the tokens that no earlier row is long enough to
  /// share.
  Result<int64_t> add_with_shared_prefix(const TraceRow& row, int64_t shared_tokens, int64_t block_tokens);

  void notice(std::string text) { notices_.push_back(std::move(text)); }

  /// Filters, orders by arrival and counts. `block_tokens` is the size of one prefix block.
  Trace finish(std::string name, std::string format, int64_t block_tokens) &&;

 private:
  struct ScopedId {
    int32_t scope;
    uint64_t id;
    bool operator==(const ScopedId&) const = default;
  };
  struct ScopedIdHash {
    size_t operator()(const ScopedId& key) const;
  };
  struct StoredRow {
    TraceRow row;
    int64_t blocks_begin = 0;
    int64_t blocks_end = 0;

    int64_t num_blocks() const { return blocks_end - blocks_begin; }
  };
  /// Rows of one session that later rows may share a prefix with.
  struct Sources {
    StoredRow last;
    StoredRow longest;
  };

  Status check_times(const TraceRow& row) const;
  Status too_many_blocks() const;
  void keep_within_limits(StoredRow& stored, int64_t block_tokens, Trace& trace) const;
  void order_by_arrival(Trace& trace) const;

  TraceOptions options_;
  std::unordered_map<std::string, int32_t> sessions_;
  std::unordered_map<ScopedId, int64_t, ScopedIdHash> block_numbers_;
  std::unordered_map<int32_t, Sources> sources_;
  int64_t next_block_ = 0;
  std::vector<int64_t> blocks_;
  std::vector<StoredRow> rows_;
  std::vector<std::string> notices_;
};

}  // namespace mlaprefill
