// A request trace: what arrived when, how long it was, and which prefixes it shared with others.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mlaprefill/status.h"

namespace mlaprefill {

/// One request of a trace.
struct TraceRequest {
  static constexpr int32_t kNoSession = -1;
  static constexpr double kNoDelay = -1.0;

  int64_t input_tokens = 0;
  int64_t output_tokens = 0;  ///< 0: prefill only
  double arrival_s = 0.0;     ///< seconds from the earliest arrival of the trace
  double delay_s = kNoDelay;  ///< seconds after the end of the session's turn before, when the file says so
  int64_t blocks_begin = 0;   ///< prefix blocks [blocks_begin, blocks_end) of Trace::blocks
  int64_t blocks_end = 0;
  int32_t session = kNoSession;  ///< turns of one session run one after another, in the order of the trace
};

enum class TraceFormat : uint8_t { kAuto, kMooncake, kAzure, kLengths, kAgentic };

std::string_view to_string(TraceFormat format);
Result<TraceFormat> parse_trace_format(std::string_view name);

struct TraceOptions {
  TraceFormat format = TraceFormat::kAuto;
  int64_t block_tokens = 0;      ///< tokens of one prefix block; 0: the format's own (Mooncake: 512)
  double time_unit_s = 0.0;      ///< seconds of one unit of a numeric arrival; 0: the format's own
  int64_t max_input_tokens = 0;  ///< the model's limit; 0: none
  bool clamp_to_limit = false;   ///< shorten inputs over the limit instead of dropping them
  int64_t max_requests = 0;      ///< keep the first N of the file; 0: all
  bool serial_sessions = true;   ///< false: turns of a session arrive on their own
  double chars_per_token = 4.0;  ///< for files that count characters
  int64_t max_file_bytes = int64_t{1} << 31;
  int64_t max_blocks = int64_t{1} << 28;  ///< prefix blocks of the whole trace, 8 bytes each in memory
};

/// What happened to the rows of the file.
struct TraceCounts {
  int64_t read = 0;
  int64_t dropped_over_limit = 0;
  int64_t dropped_empty_input = 0;
  int64_t cut = 0;          ///< rows after the first max_requests
  int64_t clamped = 0;      ///< kept, input shortened to the limit
  int64_t zero_output = 0;  ///< kept, prefill only
  int64_t reordered = 0;    ///< kept, arrived before a row that stands earlier in the file
};

/// A whole trace in memory, ordered by arrival; rows that tie keep the order of the file.
struct Trace {
  std::string name;
  std::string format;
  std::string checksum;      ///< "sha256:..." of the file, or of a directory's files one after another
  int64_t block_tokens = 0;  ///< tokens of one prefix block; 0 when no request has any
  int64_t num_sessions = 0;
  std::vector<TraceRequest> requests;
  /// Prefix identities, renumbered densely from 0: equal ids at equal places mean equal tokens up to there.
  std::vector<int64_t> blocks;
  int64_t num_distinct_blocks = 0;
  TraceCounts counts;
  std::vector<std::string> notices;  ///< one sentence each, for people

  std::span<const int64_t> blocks_of(const TraceRequest& request) const {
    return std::span(blocks).subspan(static_cast<size_t>(request.blocks_begin),
                                     static_cast<size_t>(request.blocks_end - request.blocks_begin));
  }
};

/// Reads a trace file, or a directory of nested coding-agent files. The format is told by the content:
/// Mooncake JSONL, Azure CSV, lengths CSV or nested coding-agent JSON. Errors name the file and the line.
Result<Trace> load_trace(const std::string& path, const TraceOptions& options);

/// The same from text in memory; `name` stands in for the path in messages.
Result<Trace> parse_trace(std::string_view text, const std::string& name, const TraceOptions& options);

}  // namespace mlaprefill
