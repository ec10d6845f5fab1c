#include "io/traces/trace_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mlaprefill {

size_t TraceBuilder::ScopedIdHash::operator()(const ScopedId& key) const {
  uint64_t hash = key.id ^ (static_cast<uint64_t>(static_cast<uint32_t>(key.scope)) << 40);
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

Status TraceBuilder::too_many_blocks() const {
  return error(StatusCode::kLimitExceeded, "prefix blocks of the whole trace: must be <= {}, got more",
               options_.max_blocks);
}

int32_t TraceBuilder::session(std::string_view name) {
  const auto next = static_cast<int32_t>(sessions_.size());
  return sessions_.try_emplace(std::string(name), next).first->second;
}

int64_t TraceBuilder::block(int32_t scope, uint64_t id) {
  const auto [entry, inserted] = block_numbers_.try_emplace(ScopedId{scope, id}, next_block_);
  if (inserted) ++next_block_;
  return entry->second;
}

Status TraceBuilder::check_times(const TraceRow& row) const {
  constexpr double kLongest_s = 1e12;
  if (row.arrival_s != TraceRow::kNoArrival && !(std::abs(row.arrival_s) <= kLongest_s)) {
    return error(StatusCode::kParseError, "arrival: must be within {:g} s of the clock's zero, got {:g} s",
                 kLongest_s, row.arrival_s);
  }
  if (!(row.delay_s <= kLongest_s)) {
    return error(StatusCode::kParseError, "delay: must be at most {:g} s, got {:g} s", kLongest_s,
                 row.delay_s);
  }
  return {};
}

Status TraceBuilder::add(const TraceRow& row, std::span<const int64_t> blocks) {
  MLAPREFILL_RETURN_IF_ERROR(check_times(row));
  const auto begin = std::ssize(blocks_);
  if (std::ssize(blocks) > options_.max_blocks - begin) return too_many_blocks();
  blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
  rows_.push_back({row, begin, std::ssize(blocks_)});
  return {};
}

Result<int64_t> TraceBuilder::add_with_shared_prefix(const TraceRow& row, int64_t shared_tokens,
                                                     int64_t block_tokens) {
  if (Status status = check_times(row); !status.ok()) return status;
  const int64_t limit = options_.max_input_tokens;
  const int64_t total = (limit > 0 ? std::min(row.input_tokens, limit) : row.input_tokens) / block_tokens;
  const int64_t wanted = std::min(shared_tokens / block_tokens, total);
  Sources& sources = sources_[row.session];
  const StoredRow& source = sources.last.num_blocks() >= wanted ? sources.last : sources.longest;
  const int64_t shared = std::min(wanted, source.num_blocks());
  if (total > options_.max_blocks - std::ssize(blocks_)) return too_many_blocks();

  const int64_t begin = std::ssize(blocks_);
  for (int64_t i = 0; i < total; ++i) {
    blocks_.push_back(i < shared ? blocks_[static_cast<size_t>(source.blocks_begin + i)] : next_block_++);
  }
  rows_.push_back({row, begin, begin + total});
  sources.last = rows_.back();
  if (total > sources.longest.num_blocks()) sources.longest = rows_.back();
  return (wanted - shared) * block_tokens;
}

void TraceBuilder::keep_within_limits(StoredRow& stored, int64_t block_tokens, Trace& trace) const {
  TraceRow& row = stored.row;
  if (row.input_tokens == 0) {
    ++trace.counts.dropped_empty_input;
    return;
  }
  const int64_t limit = options_.max_input_tokens;
  if (limit > 0 && row.input_tokens > limit) {
    if (!options_.clamp_to_limit) {
      ++trace.counts.dropped_over_limit;
      return;
    }
    row.input_tokens = limit;
    const int64_t whole = block_tokens > 0 ? limit / block_tokens : 0;
    stored.blocks_end = std::min(stored.blocks_end, stored.blocks_begin + whole);
    ++trace.counts.clamped;
  }
  if (options_.max_requests > 0 && std::ssize(trace.requests) >= options_.max_requests) {
    ++trace.counts.cut;
    return;
  }
  if (row.output_tokens == 0) ++trace.counts.zero_output;
  TraceRequest request;
  request.input_tokens = row.input_tokens;
  request.output_tokens = row.output_tokens;
  request.arrival_s = row.arrival_s;
  request.delay_s = row.delay_s;
  request.blocks_begin = stored.blocks_begin;
  request.blocks_end = stored.blocks_end;
  request.session = options_.serial_sessions ? row.session : TraceRequest::kNoSession;
  trace.requests.push_back(request);
}

void TraceBuilder::order_by_arrival(Trace& trace) const {
  std::vector<TraceRequest>& requests = trace.requests;
  double first = std::numeric_limits<double>::infinity();
  for (const TraceRequest& request : requests) first = std::min(first, request.arrival_s);
  double latest = 0.0;
  for (TraceRequest& request : requests) {
    request.arrival_s -= first;
    if (request.arrival_s < latest) ++trace.counts.reordered;
    latest = std::max(latest, request.arrival_s);
  }
  std::stable_sort(requests.begin(), requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_s < b.arrival_s; });
}

Trace TraceBuilder::finish(std::string name, std::string format, int64_t block_tokens) && {
  Trace trace;
  trace.name = std::move(name);
  trace.format = std::move(format);
  trace.counts.read = std::ssize(rows_);
  trace.notices = std::move(notices_);

  // A row without an arrival of its own arrives with the row of its session before it.
  std::unordered_map<int32_t, double> session_clock;
  double clock = 0.0;
  for (StoredRow& stored : rows_) {
    double& last = stored.row.session >= 0 ? session_clock[stored.row.session] : clock;
    if (stored.row.arrival_s == TraceRow::kNoArrival) stored.row.arrival_s = last;
    last = stored.row.arrival_s;
    keep_within_limits(stored, block_tokens, trace);
  }
  order_by_arrival(trace);

  trace.blocks = std::move(blocks_);
  trace.num_distinct_blocks = next_block_;
  trace.block_tokens = trace.blocks.empty() ? 0 : block_tokens;
  std::vector<bool> seen(sessions_.size());
  for (const TraceRequest& request : trace.requests) {
    if (request.session < 0 || seen[static_cast<size_t>(request.session)]) continue;
    seen[static_cast<size_t>(request.session)] = true;
    ++trace.num_sessions;
  }

  const TraceCounts& counts = trace.counts;
  if (counts.reordered > 0) {
    trace.notices.push_back(
        fmt::format("sorted by arrival: {} of {} rows arrived before a row that stands earlier in the file",
                    counts.reordered, trace.requests.size()));
  }
  if (counts.dropped_over_limit > 0 || counts.clamped > 0) {
    trace.notices.push_back(fmt::format("{} rows with an input over the model's {} tokens were {}",
                                        counts.dropped_over_limit + counts.clamped, options_.max_input_tokens,
                                        options_.clamp_to_limit ? "shortened to that" : "dropped"));
  }
  if (counts.dropped_empty_input > 0) {
    trace.notices.push_back(
        fmt::format("{} rows without input tokens were dropped", counts.dropped_empty_input));
  }
  if (counts.zero_output > 0) {
    trace.notices.push_back(fmt::format("{} rows have no output tokens: prefill only", counts.zero_output));
  }
  if (trace.blocks.empty() && !trace.requests.empty()) {
    trace.notices.push_back("the file says nothing of shared prefixes: every request starts cold");
  }
  return trace;
}

}  // namespace mlaprefill
