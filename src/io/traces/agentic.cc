#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>

#include "core/error.h"
#include "io/traces/loaders.h"
#include "io/traces/text.h"

namespace mlaprefill {
namespace {

namespace dom = simdjson::dom;

constexpr int kMaxSubagentDepth = 8;

/// Loads nested coding-agent sessions. Requests stand in a tree: a sub-agent's requests run where the
/// sub-agent stands among its parent's, and share the parent's id space.
class AgenticLoader {
 public:
  AgenticLoader(const std::string& name, const TraceOptions& options) : name_(name), builder_(options) {}

  Status add_file(const std::string& file, std::string_view text) {
    file_ = file;
    dom::parser parser;
    dom::element document;
    const simdjson::error_code failure = parser.parse(text.data(), text.size()).get(document);
    if (failure != simdjson::SUCCESS) {
      return error(StatusCode::kParseError, "{}: document: must be one JSON object, got {}", file_,
                   simdjson::error_message(failure));
    }
    dom::object session;
    if (document.get(session) != simdjson::SUCCESS) return parse_error("document", "must be a JSON object");
    MLAPREFILL_RETURN_IF_ERROR(read_header(session));
    dom::array requests;
    if (session["requests"].get(requests) != simdjson::SUCCESS)
      return parse_error("requests", "must be a list");
    return add_requests(requests, "requests", 0);
  }

  Trace finish() && {
    if (subagents_ > 0) {
      builder_.notice(fmt::format(
          "{} sub-agents run in place, one turn after another, among their parents' turns", subagents_));
    }
    return std::move(builder_).finish(name_, "coding-agent json", block_tokens_);
  }

 private:
  Status parse_error(std::string_view where, std::string_view requirement) const {
    return error(StatusCode::kParseError, "{}: {}: {}, got something else", file_, where, requirement);
  }

  Status read_header(dom::object session) {
    int64_t block_tokens = 0;
    if (session["block_size"].get(block_tokens) != simdjson::SUCCESS || block_tokens < 1) {
      return parse_error("block_size", "must be a whole number >= 1");
    }
    const int64_t forced = builder_.options().block_tokens;
    if (forced > 0) block_tokens = forced;
    if (block_tokens_ != 0 && block_tokens != block_tokens_) {
      return error(StatusCode::kParseError, "{}: block_size: must be {} as in the files before, got {}",
                   file_, block_tokens_, block_tokens);
    }
    block_tokens_ = block_tokens;

    std::string_view scope = "local";
    const auto given = session["hash_id_scope"];
    if (given.error() == simdjson::SUCCESS && given.get(scope) != simdjson::SUCCESS) {
      return parse_error("hash_id_scope", "must be \"local\" or \"global\"");
    }
    if (scope != "local" && scope != "global") {
      return error(StatusCode::kParseError, "{}: hash_id_scope: must be \"local\" or \"global\", got \"{}\"",
                   file_, scope);
    }
    session_ = builder_.session(file_);
    id_scope_ = scope == "global" ? -1 : session_;
    return {};
  }

  Status add_requests(dom::array requests, const std::string& where, int depth) {
    if (depth > kMaxSubagentDepth) {
      return error(StatusCode::kLimitExceeded, "{}: {}: sub-agents must nest at most {} deep, got more",
                   file_, where, kMaxSubagentDepth);
    }
    int64_t index = 0;
    for (const dom::element entry : requests) {
      const std::string here = fmt::format("{}[{}]", where, index++);
      dom::object request;
      if (entry.get(request) != simdjson::SUCCESS) return parse_error(here, "must be a JSON object");
      dom::array nested;
      if (request["requests"].get(nested) == simdjson::SUCCESS) {
        ++subagents_;
        MLAPREFILL_RETURN_IF_ERROR(add_requests(nested, here + ".requests", depth + 1));
      } else {
        MLAPREFILL_RETURN_IF_ERROR(add_request(request, here));
      }
    }
    return {};
  }

  Status add_request(dom::object request, const std::string& where) {
    TraceRow row;
    row.session = session_;
    MLAPREFILL_RETURN_IF_ERROR(read_tokens(request["in"], where + ".in", row.input_tokens));
    const auto output = request["out"];
    if (output.error() == simdjson::SUCCESS && !output.is_null()) {
      MLAPREFILL_RETURN_IF_ERROR(read_tokens(output, where + ".out", row.output_tokens));
    }
    double seconds = 0.0;
    if (request["t"].get(seconds) != simdjson::SUCCESS) {
      return parse_error(where + ".t", "must be seconds from the session's start");
    }
    // Turns stay in the order of the file: a sub-agent's clock may run beside its parent's.
    latest_s_ = session_ == latest_session_ ? std::max(latest_s_, seconds) : seconds;
    latest_session_ = session_;
    row.arrival_s = latest_s_;
    const auto think = request["think_time"];
    if (think.error() == simdjson::SUCCESS && !think.is_null()) {
      if (think.get(seconds) != simdjson::SUCCESS || seconds < 0) {
        return parse_error(where + ".think_time", "must be seconds >= 0");
      }
      row.delay_s = seconds;
    }
    MLAPREFILL_RETURN_IF_ERROR(read_blocks(request, where, row.input_tokens));
    if (Status status = builder_.add(row, blocks_); !status.ok()) {
      return Status(status.code(), fmt::format("{}: {}: {}", file_, where, status.message()));
    }
    return {};
  }

  Status read_tokens(simdjson::simdjson_result<dom::element> value, const std::string& where,
                     int64_t& tokens) const {
    if (value.get(tokens) != simdjson::SUCCESS || tokens < 0) {
      return parse_error(where, "must be a whole number of tokens >= 0");
    }
    return {};
  }

  Status read_blocks(dom::object request, const std::string& where, int64_t input_tokens) {
    blocks_.clear();
    const auto given = request["hash_ids"];
    if (given.error() != simdjson::SUCCESS || given.is_null()) return {};
    dom::array ids;
    if (given.get(ids) != simdjson::SUCCESS) return parse_error(where + ".hash_ids", "must be a list");
    for (const dom::element id : ids) {
      uint64_t number = 0;
      if (id.get(number) != simdjson::SUCCESS) {
        return parse_error(fmt::format("{}.hash_ids[{}]", where, blocks_.size()),
                           "must be a whole number of 64 bits, not negative");
      }
      blocks_.push_back(builder_.block(id_scope_, number));
    }
    // Producers of this format name whole blocks only, those of its relatives the partial last one too.
    const int64_t whole = input_tokens / block_tokens_;
    const int64_t count = std::ssize(blocks_);
    if (count == whole || (count == whole + 1 && input_tokens % block_tokens_ > 0)) return {};
    return error(StatusCode::kParseError,
                 "{}: {}.hash_ids: must hold {} ids for {} input tokens in blocks of {}, got {}", file_,
                 where, whole, input_tokens, block_tokens_, count);
  }

  const std::string& name_;
  TraceBuilder builder_;
  std::string file_;
  int32_t session_ = 0;
  int32_t id_scope_ = 0;
  int64_t block_tokens_ = 0;
  int64_t subagents_ = 0;
  int32_t latest_session_ = -1;
  double latest_s_ = 0.0;
  std::vector<int64_t> blocks_;
};

}  // namespace

Result<Trace> parse_agentic(const std::vector<std::pair<std::string, std::string_view>>& files,
                            const std::string& name, const TraceOptions& options) {
  AgenticLoader loader(name, options);
  for (const auto& [file, text] : files) MLAPREFILL_RETURN_IF_ERROR(loader.add_file(file, text));
  return std::move(loader).finish();
}

}  // namespace mlaprefill
