#include "replay/scheduler.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"

namespace mlaprefill {
namespace {

int64_t ceil_div(int64_t value, int64_t divisor) { return value / divisor + (value % divisor > 0 ? 1 : 0); }

/// Blocks of a request that may be hits: whole ones that leave a token to compute.
int64_t hittable_blocks(const TraceRequest& request, int64_t block_tokens) {
  return (request.input_tokens - 1) / block_tokens;
}

Status validate(const Trace& trace, const SchedulerOptions& options) {
  if (options.budget_tokens < 1) return invalid("budget: must be >= 1 token, got {}", options.budget_tokens);
  if (options.concurrency < 1) return invalid("concurrency: must be >= 1, got {}", options.concurrency);
  if (options.block_tokens < 1)
    return invalid("block size: must be >= 1 token, got {}", options.block_tokens);
  if (trace.block_tokens % options.block_tokens != 0) {
    return invalid("block size: must divide the trace's prefix blocks of {} tokens, got {}",
                   trace.block_tokens, options.block_tokens);
  }
  const int64_t num_blocks = options.cache_tokens / options.block_tokens;
  if (num_blocks < 1 || num_blocks > std::numeric_limits<int32_t>::max()) {
    return invalid("cache size: must be 1 to {} blocks of {} tokens, got {} tokens",
                   std::numeric_limits<int32_t>::max(), options.block_tokens, options.cache_tokens);
  }
  if (trace.requests.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return error(StatusCode::kLimitExceeded, "trace: must hold at most {} requests, got {}",
                 std::numeric_limits<int32_t>::max(), trace.requests.size());
  }
  const StepTimeModel& model = options.time_model;
  if (!(model.step_s >= 0) || !(model.token_s >= 0) || model.step_s + model.token_s <= 0) {
    return invalid("time model: must take time for a step or a token, got {} s a step, {} s a token",
                   model.step_s, model.token_s);
  }
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    if (request.input_tokens < 1 || request.input_tokens > kMax) {
      return error(StatusCode::kLimitExceeded, "trace.requests[{}].input_tokens: must be 1 to {}, got {}", i,
                   kMax, request.input_tokens);
    }
  }
  return {};
}

}  // namespace

int64_t block_content_key(const Trace& trace, const TraceRequest& request, int64_t block_tokens,
                          int64_t index) {
  if (trace.block_tokens == 0 || (index + 1) * block_tokens > request.input_tokens) return -1;
  const int64_t blocks_per_prefix_block = trace.block_tokens / block_tokens;
  const int64_t prefix_block = index / blocks_per_prefix_block;
  if (prefix_block >= request.blocks_end - request.blocks_begin) return -1;
  return trace.blocks_of(request)[static_cast<size_t>(prefix_block)] * blocks_per_prefix_block +
         index % blocks_per_prefix_block;
}

int64_t theoretical_hit_tokens(const Trace& trace, int64_t block_tokens) {
  std::unordered_set<int64_t> seen;
  int64_t total = 0;
  for (const TraceRequest& request : trace.requests) {
    const int64_t hittable = hittable_blocks(request, block_tokens);
    bool hitting = true;
    for (int64_t index = 0;; ++index) {
      const int64_t key = block_content_key(trace, request, block_tokens, index);
      if (key < 0) break;
      const bool known = !seen.insert(key).second;
      hitting = hitting && known && index < hittable;
      if (hitting) total += block_tokens;
    }
  }
  return total;
}

Result<Scheduler> Scheduler::create(const Trace& trace, const SchedulerOptions& options) {
  MLAPREFILL_RETURN_IF_ERROR(validate(trace, options));
  return Scheduler(trace, options);
}

Scheduler::Scheduler(const Trace& trace, const SchedulerOptions& options)
    : trace_(&trace),
      options_(options),
      cache_(options.cache_tokens / options.block_tokens),
      states_(trace.requests.size()) {
  link_sessions();
  if (options_.arrivals == Arrivals::kTimestamps) {
    for (const int32_t head : heads_) future_.push({request(head).arrival_s, head});
    next_head_ = heads_.size();
  }
}

void Scheduler::link_sessions() {
  std::unordered_map<int32_t, int32_t> latest;
  for (int32_t index = 0; index < static_cast<int32_t>(states_.size()); ++index) {
    if (blocks_needed(index) > cache_.num_blocks()) {
      ++counts_.dropped_over_cache;
      continue;
    }
    const int32_t session = request(index).session;
    const auto [entry, first] =
        session < 0 ? std::pair(latest.end(), true) : latest.try_emplace(session, index);
    if (first) {
      heads_.push_back(index);
    } else {
      state(entry->second).next_in_session = index;
      entry->second = index;
    }
  }
}

int64_t Scheduler::blocks_needed(int32_t index) const {
  const TraceRequest& r = request(index);
  // Output beyond any cache is refused here rather than overflowing the sum.
  if (r.output_tokens > options_.cache_tokens) return std::numeric_limits<int64_t>::max();
  return ceil_div(r.input_tokens + std::max<int64_t>(r.output_tokens - 1, 0), options_.block_tokens);
}

void Scheduler::retire_finished() {
  for (const int32_t index : finished_) {
    std::vector<int32_t>& blocks = state(index).blocks;
    // From the last block on, so that the start of a prefix outlives its end.
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) cache_.release(*block);
    blocks = {};
    ++counts_.completed;
    running_.erase(std::find(running_.begin(), running_.end(), index));
    start_next_turn(index);
  }
  finished_.clear();
}

void Scheduler::start_next_turn(int32_t finished) {
  const int32_t turn = state(finished).next_in_session;
  if (turn == kNone) {
    --open_sessions_;
  } else if (options_.arrivals == Arrivals::kClosedLoop) {
    waiting_.push_back(turn);
  } else {
    const double after_delay_s = clock_s_ + std::max(request(turn).delay_s, 0.0);
    future_.push({std::max(request(turn).arrival_s, after_delay_s), turn});
  }
}

void Scheduler::collect_arrivals() {
  if (running_.empty() && waiting_.empty() && !future_.empty())
    clock_s_ = std::max(clock_s_, future_.top().time_s);
  while (!future_.empty() && future_.top().time_s <= clock_s_) {
    const Arrival arrival = future_.top();
    future_.pop();
    state(arrival.request).ready_s = arrival.time_s;
    waiting_.push_back(arrival.request);
  }
  while (next_head_ < heads_.size() && open_sessions_ < options_.concurrency) {
    waiting_.push_back(heads_[next_head_++]);
    ++open_sessions_;
  }
}

bool Scheduler::admit(int32_t index) {
  const TraceRequest& r = request(index);
  const int64_t needed = blocks_needed(index);
  const int64_t hittable = hittable_blocks(r, options_.block_tokens);
  std::vector<int32_t> blocks;
  int64_t kept_hits = 0;
  for (int64_t i = 0; i < hittable; ++i) {
    const int64_t key = block_content_key(*trace_, r, options_.block_tokens, i);
    const int32_t block = key < 0 ? BlockCache::kNone : cache_.find(key);
    if (block == BlockCache::kNone) break;
    if (!cache_.in_use(block)) ++kept_hits;
    blocks.push_back(block);
  }
  const int64_t hits = std::ssize(blocks);
  if (needed - hits + kept_hits > cache_.blocks_available()) return false;
  for (const int32_t block : blocks) cache_.acquire(block);
  blocks.reserve(static_cast<size_t>(needed));
  for (int64_t i = hits; i < needed; ++i) blocks.push_back(cache_.allocate());

  State& s = state(index);
  s.blocks = std::move(blocks);
  s.computed_tokens = hits * options_.block_tokens;
  counts_.input_tokens += r.input_tokens;
  counts_.hit_tokens += s.computed_tokens;
  running_.push_back(index);
  return true;
}

void Scheduler::schedule_prefill(int32_t index, int64_t& budget, Step& step) {
  State& s = state(index);
  const TraceRequest& r = request(index);
  const int64_t tokens = std::min(budget, r.input_tokens - s.computed_tokens);
  step.rows.push_back({index, s.computed_tokens, tokens});
  step.prefill_tokens += tokens;
  budget -= tokens;
  const int64_t first = s.computed_tokens / options_.block_tokens;
  s.computed_tokens += tokens;
  for (int64_t i = first; i < s.computed_tokens / options_.block_tokens; ++i) {
    const int64_t key = block_content_key(*trace_, r, options_.block_tokens, i);
    if (key < 0) break;
    cache_.publish(s.blocks[static_cast<size_t>(i)], key);
  }
  if (s.computed_tokens < r.input_tokens) return;
  s.decode_left = r.output_tokens - 1;
  if (s.decode_left <= 0) finish(index);
}

bool Scheduler::next(Step& step) {
  retire_finished();
  collect_arrivals();
  step.rows.clear();
  step.prefill_tokens = 0;
  step.decode_tokens = 0;
  if (running_.empty() && waiting_.empty()) return false;

  int64_t budget = options_.budget_tokens;
  const size_t already_running = running_.size();
  for (size_t i = 0; i < already_running && budget > 0; ++i) {
    const int32_t index = running_[i];
    if (prefilling(index)) continue;
    --budget;
    ++step.decode_tokens;
    if (--state(index).decode_left == 0) finish(index);
  }
  for (size_t i = 0; i < already_running && budget > 0; ++i) {
    if (prefilling(running_[i])) schedule_prefill(running_[i], budget, step);
  }
  while (budget > 0 && !waiting_.empty() && std::ssize(running_) < options_.concurrency) {
    if (!admit(waiting_.front())) {
      ++counts_.waits_for_cache;
      break;
    }
    waiting_.pop_front();
    schedule_prefill(running_.back(), budget, step);
  }

  counts_.decode_tokens += step.decode_tokens;
  step.requests_in_flight = std::ssize(running_);
  step.start_s = clock_s_;
  step.duration_s = 0.0;
  if (options_.arrivals == Arrivals::kTimestamps) {
    const StepTimeModel& model = options_.time_model;
    step.duration_s =
        model.step_s + model.token_s * static_cast<double>(step.prefill_tokens + step.decode_tokens);
    clock_s_ += step.duration_s;
    for (const PrefillRow& row : step.rows) {
      if (!prefilling(row.request)) times_to_first_token_s_.push_back(clock_s_ - state(row.request).ready_s);
    }
  }
  return true;
}

}  // namespace mlaprefill
