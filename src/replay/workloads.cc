#include "replay/workloads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "io/traces/trace_builder.h"
#include "replay/random.h"

namespace mlaprefill {
namespace {

/// A log-normal distribution given by two of its quantiles.
struct LogNormal {
  double p50;
  double p90;

  double draw(Random& random) const {
    constexpr double kNormalP90 = 1.2815515655446004;
    return p50 * std::exp(random.normal() * std::log(p90 / p50) / kNormalP90);
  }
};

// Statistics of 53 public Claude Code sessions (callanjfox/kv-cache-tester, Apache-2.0), in tokens: what a
// turn adds to the prefix it shares with the turn before, what it answers, how long inputs become, and the
// prompt of tools and system text that all sessions start with.
constexpr LogNormal kNewTokens{1284.0, 5862.0};
constexpr LogNormal kOutputTokens{239.0, 894.0};
constexpr int64_t kLongestInput = 156070;  // p99
constexpr int64_t kSharedPrompt = 15000;
constexpr int64_t kPrefixBlock = 64;
constexpr int64_t kSmallestPrefixBlock = 16;
constexpr int64_t kTurnsOfSession = 10;
// A session joins at a random point of its life: its first turn brings a history of up to this length.
constexpr int64_t kLongestHistory = 110000;

constexpr int64_t kFixedInput = 8192;
constexpr int64_t kFixedOutput = 128;

int64_t scaled(double tokens, int64_t divisor) {
  return std::max<int64_t>(1, std::llround(tokens / static_cast<double>(divisor)));
}

/// Input of a session as a list of blocks that later turns extend.
class Session {
 public:
  Session(TraceBuilder& builder, int32_t number, int64_t block_tokens)
      : builder_(builder), number_(number), block_tokens_(block_tokens) {}

  int64_t input_tokens() const { return input_tokens_; }

  /// Keeps the first `tokens` and forgets the rest, as a compaction of the history does.
  void truncate(int64_t tokens) {
    input_tokens_ = std::min(input_tokens_, tokens);
    blocks_.resize(static_cast<size_t>(input_tokens_ / block_tokens_));
    ++generation_;
  }

  void extend(int64_t tokens, int64_t shared_prompt_tokens) {
    input_tokens_ += tokens;
    while (std::ssize(blocks_) < input_tokens_ / block_tokens_) {
      const auto index = static_cast<uint64_t>(blocks_.size());
      const bool shared = (std::ssize(blocks_) + 1) * block_tokens_ <= shared_prompt_tokens;
      blocks_.push_back(shared ? builder_.block(-1, index)
                               : builder_.block(number_, generation_ << 32 | index));
    }
  }

  Status add_turn(int64_t output_tokens) {
    return builder_.add({.input_tokens = input_tokens_, .output_tokens = output_tokens, .session = number_},
                        blocks_);
  }

 private:
  TraceBuilder& builder_;
  int32_t number_;
  int64_t block_tokens_;
  int64_t input_tokens_ = 0;
  uint64_t generation_ = 0;
  std::vector<int64_t> blocks_;
};

Result<Trace> make_agentic(const WorkloadOptions& options) {
  TraceBuilder builder({});
  const int64_t divisor = options.length_divisor;
  const int64_t block_tokens = std::max(kSmallestPrefixBlock, kPrefixBlock / divisor);
  const int64_t shared_prompt = scaled(kSharedPrompt, divisor);
  int64_t longest = scaled(kLongestInput, divisor);
  if (options.max_input_tokens > 0) longest = std::min(longest, options.max_input_tokens);

  Random random(options.seed);
  const int64_t num_sessions = std::max<int64_t>(1, options.requests / kTurnsOfSession);
  std::vector<Session> sessions;
  for (int64_t i = 0; i < num_sessions; ++i) {
    sessions.emplace_back(builder, builder.session(fmt::format("session {}", i)), block_tokens);
  }
  // Turns are dealt out in rounds, so that sessions run side by side.
  for (int64_t i = 0; i < options.requests; ++i) {
    Session& session = sessions[static_cast<size_t>(i % num_sessions)];
    const int64_t history =
        i < num_sessions ? shared_prompt + scaled(static_cast<double>(random.below(kLongestHistory)), divisor)
                         : 0;
    const int64_t added = history + scaled(kNewTokens.draw(random), divisor);
    if (session.input_tokens() + added > longest) session.truncate(shared_prompt);
    session.extend(std::min(added, longest - session.input_tokens()), shared_prompt);
    MLAPREFILL_RETURN_IF_ERROR(session.add_turn(scaled(kOutputTokens.draw(random), divisor)));
  }
  return std::move(builder).finish(fmt::format("built-in agentic workload, seed {}", options.seed),
                                   "built-in", block_tokens);
}

Result<Trace> make_fixed(const WorkloadOptions& options) {
  TraceBuilder builder({});
  int64_t input = scaled(kFixedInput, options.length_divisor);
  if (options.max_input_tokens > 0) input = std::min(input, options.max_input_tokens);
  for (int64_t i = 0; i < options.requests; ++i) {
    MLAPREFILL_RETURN_IF_ERROR(builder.add(
        {.input_tokens = input, .output_tokens = scaled(kFixedOutput, options.length_divisor)}, {}));
  }
  return std::move(builder).finish("built-in fixed workload", "built-in", 0);
}

}  // namespace

Result<Trace> make_workload(std::string_view name, const WorkloadOptions& options) {
  if (options.requests < 1 || options.requests > 1000000) {
    return invalid("requests: must be 1 to 1000000, got {}", options.requests);
  }
  if (options.length_divisor < 1 || options.length_divisor > 4096) {
    return invalid("length divisor: must be 1 to 4096, got {}", options.length_divisor);
  }
  if (name == "agentic") return make_agentic(options);
  if (name == "fixed") return make_fixed(options);
  return invalid("workload: must be agentic or fixed, got \"{}\"", name);
}

}  // namespace mlaprefill
