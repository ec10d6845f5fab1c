// Continuous batching over a trace: which request computes which of its tokens in which step.
#pragma once

#include <cstdint>
#include <deque>
#include <queue>
#include <span>
#include <vector>

#include "io/traces/trace.h"
#include "mlaprefill/status.h"
#include "replay/block_cache.h"

namespace mlaprefill {

enum class Arrivals : uint8_t {
  kClosedLoop,  ///< `concurrency` requests or sessions in flight, the next one starts when one ends
  kTimestamps,  ///< requests become ready at their times; the step time model moves the clock
};

/// How long a step lasts on the simulated clock of kTimestamps. A model of nothing in particular: it only
/// spaces steps.
struct StepTimeModel {
  double step_s = 0.010;
  double token_s = 30e-6;
};

struct SchedulerOptions {
  int64_t budget_tokens = 8192;  ///< prompt and decode tokens of one step
  int64_t concurrency = 64;   ///< requests in flight (kClosedLoop: sessions count once for all their turns)
  int64_t block_tokens = 64;  ///< tokens of one cache block; divides the trace's prefix blocks
  int64_t cache_tokens = int64_t{1} << 21;
  Arrivals arrivals = Arrivals::kClosedLoop;
  StepTimeModel time_model;
};

/// A request's share of a step: prompt tokens [context_tokens, context_tokens + new_tokens).
struct PrefillRow {
  int32_t request = 0;
  int64_t context_tokens = 0;
  int64_t new_tokens = 0;
};

struct Step {
  std::vector<PrefillRow> rows;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens =
      0;  ///< rows of one token each; they take budget, but are no work of a prefill layer
  int64_t requests_in_flight = 0;
  double start_s = 0.0;  ///< simulated clock, kTimestamps only
  double duration_s = 0.0;
};

struct SchedulerCounts {
  int64_t completed = 0;
  int64_t dropped_over_cache = 0;  ///< never started: input and output need more blocks than the cache has
  int64_t input_tokens = 0;        ///< of the requests admitted so far
  int64_t hit_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t waits_for_cache = 0;  ///< steps in which a request could not start for want of blocks
};

/// Walks a trace step by step. A step takes decode tokens first, then goes on with running prefills, then
/// admits waiting requests in order while budget, slots and cache blocks last. A request gets the blocks of
/// its whole input and output when it starts, so it never has to be put back. Blocks can be hit by others
/// from the step on that computes them; hits are whole blocks and leave at least one token to compute.
/// Deterministic.
class Scheduler {
 public:
  /// The trace must outlive the scheduler.
  static Result<Scheduler> create(const Trace& trace, const SchedulerOptions& options);

  /// The next step, or false at the end of the trace. The blocks of the step's requests stay theirs until the
  /// next call.
  bool next(Step& step);

  /// Cache blocks of a request in flight, in the order of its tokens.
  std::span<const int32_t> blocks_of(int32_t request) const {
    return states_[static_cast<size_t>(request)].blocks;
  }
  const SchedulerCounts& counts() const { return counts_; }
  const BlockCache& cache() const { return cache_; }
  /// kTimestamps: seconds from a request's readiness to the end of the step that computes its last prompt
  /// token.
  std::span<const double> times_to_first_token_s() const { return times_to_first_token_s_; }

 private:
  static constexpr int32_t kNone = -1;

  struct State {
    int64_t computed_tokens = 0;
    int64_t decode_left = 0;
    double ready_s = 0.0;
    int32_t next_in_session = kNone;
    std::vector<int32_t> blocks;
  };
  struct Arrival {
    double time_s;
    int32_t request;
    bool operator>(const Arrival& other) const {
      return time_s != other.time_s ? time_s > other.time_s : request > other.request;
    }
  };

  Scheduler(const Trace& trace, const SchedulerOptions& options);

  const TraceRequest& request(int32_t index) const { return trace_->requests[static_cast<size_t>(index)]; }
  State& state(int32_t index) { return states_[static_cast<size_t>(index)]; }
  bool prefilling(int32_t index) const {
    return states_[static_cast<size_t>(index)].computed_tokens < request(index).input_tokens;
  }
  int64_t blocks_needed(int32_t index) const;

  void link_sessions();
  void retire_finished();
  void start_next_turn(int32_t finished);
  void collect_arrivals();
  bool admit(int32_t index);
  void schedule_prefill(int32_t index, int64_t& budget, Step& step);
  void finish(int32_t index) { finished_.push_back(index); }

  const Trace* trace_;
  SchedulerOptions options_;
  BlockCache cache_;
  std::vector<State> states_;
  std::vector<int32_t> heads_;  ///< first turns, in order
  size_t next_head_ = 0;
  int64_t open_sessions_ = 0;
  std::deque<int32_t> waiting_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> future_;
  std::vector<int32_t> running_;
  std::vector<int32_t> finished_;  ///< by the step handed out last
  double clock_s_ = 0.0;
  SchedulerCounts counts_;
  std::vector<double> times_to_first_token_s_;
};

/// Key of the content of block `index` of a request, or -1 when the trace does not identify it.
int64_t block_content_key(const Trace& trace, const TraceRequest& request, int64_t block_tokens,
                          int64_t index);

/// Tokens an unlimited cache would hit when requests come one after another in the trace's order: the longest
/// run of whole blocks from the start that an earlier request had, at most input - 1.
int64_t theoretical_hit_tokens(const Trace& trace, int64_t block_tokens);

}  // namespace mlaprefill
