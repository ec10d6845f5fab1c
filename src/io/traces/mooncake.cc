#include <fmt/format.h>
#include <simdjson.h>

#include <optional>

#include "core/error.h"
#include "io/traces/loaders.h"
#include "io/traces/text.h"

namespace mlaprefill {
namespace {

namespace dom = simdjson::dom;

constexpr int64_t kMooncakeBlockTokens = 512;
constexpr int64_t kBailianBlockTokens = 16;

/// The fields of one line, by whatever alias the producer used.
struct Fields {
  std::optional<dom::element> input;
  std::optional<dom::element> output;
  std::optional<dom::element> arrival;
  std::optional<dom::element> delay;
  std::optional<dom::element> session;
  std::optional<dom::element> hash_ids;
  bool has_chat_id = false;
};

Fields collect(dom::object line) {
  Fields fields;
  for (const auto [key, value] : line) {
    if (value.is_null()) continue;
    if (key == "input_length" || key == "input_tokens") fields.input = value;
    if (key == "output_length" || key == "output_tokens") fields.output = value;
    if (key == "timestamp" || key == "created_time") fields.arrival = value;
    if (key == "delay" || key == "delay_ms") fields.delay = value;
    if (key == "session_id") fields.session = value;
    if (key == "hash_ids") fields.hash_ids = value;
    if (key == "chat_id") fields.has_chat_id = true;
  }
  return fields;
}

/// A JSON number that is a whole number, written with or without a fraction.
std::optional<int64_t> whole_number(dom::element value) {
  int64_t integer = 0;
  if (value.get(integer) == simdjson::SUCCESS) return integer;
  double real = 0.0;
  if (value.is_double() && value.get(real) == simdjson::SUCCESS && real >= -9e15 && real <= 9e15 &&
      real == static_cast<double>(static_cast<int64_t>(real))) {
    return static_cast<int64_t>(real);
  }
  return std::nullopt;
}

std::string as_text(dom::element value) {
  std::string text = simdjson::minify(value);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

class MooncakeLoader {
 public:
  MooncakeLoader(const std::string& name, const TraceOptions& options)
      : name_(name), options_(options), builder_(options) {}

  Status add_line(dom::element line, int64_t line_number) {
    where_ = fmt::format("{}:{}", name_, line_number);
    dom::object object;
    if (line.get(object) != simdjson::SUCCESS) {
      return parse_error("line: must be a JSON object, got {}", as_text(line));
    }
    const Fields fields = collect(object);
    if (first_) choose_dialect(fields);
    first_ = false;

    TraceRow row;
    if (!fields.input) {
      return parse_error("input_length: must be given (this tool has no tokenizer for text), got none");
    }
    MLAPREFILL_RETURN_IF_ERROR(read_tokens("input_length", *fields.input, row.input_tokens));
    if (fields.output)
      MLAPREFILL_RETURN_IF_ERROR(read_tokens("output_length", *fields.output, row.output_tokens));
    if (fields.arrival) {
      MLAPREFILL_RETURN_IF_ERROR(read_seconds("timestamp", *fields.arrival, time_unit_s_, row.arrival_s));
    }
    if (fields.delay) {
      MLAPREFILL_RETURN_IF_ERROR(read_seconds("delay", *fields.delay, 1e-3, row.delay_s));
      if (row.delay_s < 0) return parse_error("delay: must be >= 0, got {}", as_text(*fields.delay));
    }
    if (fields.session) row.session = builder_.session(as_text(*fields.session));
    MLAPREFILL_RETURN_IF_ERROR(read_blocks(fields, row.input_tokens));
    if (Status status = builder_.add(row, blocks_); !status.ok()) {
      return Status(status.code(), fmt::format("{}: {}", where_, status.message()));
    }
    return {};
  }

  Trace finish() && {
    if (rows_without_blocks_ > 0 && rows_with_blocks_ > 0) {
      builder_.notice(fmt::format("{} rows have no hash_ids and share no prefix", rows_without_blocks_));
    }
    return std::move(builder_).finish(name_, format_, block_tokens_);
  }

 private:
  template <typename... Args>
  Status parse_error(fmt::format_string<Args...> format, Args&&... args) const {
    return error(StatusCode::kParseError, "{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

  /// The same key names mean other units where a chat_id stands beside them.
  void choose_dialect(const Fields& fields) {
    format_ = fields.has_chat_id ? "qwen-bailian jsonl" : "mooncake jsonl";
    block_tokens_ = options_.block_tokens > 0 ? options_.block_tokens
                    : fields.has_chat_id      ? kBailianBlockTokens
                                              : kMooncakeBlockTokens;
    time_unit_s_ = options_.time_unit_s > 0 ? options_.time_unit_s : fields.has_chat_id ? 1.0 : 1e-3;
  }

  Status read_tokens(const char* field, dom::element value, int64_t& tokens) const {
    const auto number = whole_number(value);
    if (!number || *number < 0) {
      return parse_error("{}: must be a whole number of tokens >= 0, got {}", field, as_text(value));
    }
    tokens = *number;
    return {};
  }

  Status read_seconds(const char* field, dom::element value, double unit_s, double& seconds) const {
    double number = 0.0;
    if (!value.is_number() || value.get(number) != simdjson::SUCCESS) {
      return parse_error("{}: must be a number, got {}", field, as_text(value));
    }
    seconds = number * unit_s;
    return {};
  }

  Status read_blocks(const Fields& fields, int64_t input_tokens) {
    blocks_.clear();
    dom::array ids;
    if (fields.hash_ids && fields.hash_ids->get(ids) != simdjson::SUCCESS) {
      return parse_error("hash_ids: must be a list, got {}", as_text(*fields.hash_ids));
    }
    if (!fields.hash_ids || ids.size() == 0) {
      ++rows_without_blocks_;
      return {};
    }
    ++rows_with_blocks_;
    for (const dom::element id : ids) {
      uint64_t number = 0;
      int64_t negative = 0;
      if (id.get(number) != simdjson::SUCCESS) {
        if (id.get(negative) != simdjson::SUCCESS) {
          return parse_error("hash_ids[{}]: must be a 64-bit whole number, got {}", blocks_.size(),
                             as_text(id));
        }
        number = static_cast<uint64_t>(negative);
      }
      blocks_.push_back(builder_.block(0, number));
    }
    return check_block_count(std::ssize(blocks_), input_tokens);
  }

  Status check_block_count(int64_t count, int64_t input_tokens) const {
    const int64_t expected = input_tokens / block_tokens_ + (input_tokens % block_tokens_ > 0 ? 1 : 0);
    if (count == expected) return {};
    // The block sizes b with ceil(input / b) == count.
    const int64_t smallest = input_tokens / count + (input_tokens % count > 0 ? 1 : 0);
    const int64_t largest = count > 1 ? (input_tokens - 1) / (count - 1) : smallest;
    const std::string implied =
        input_tokens == 0 || largest < smallest ? "which no block size explains"
        : count == 1 ? fmt::format("which implies blocks of {} tokens or more", smallest)
                     : fmt::format("which implies blocks of {} to {} tokens", smallest, largest);
    return parse_error("hash_ids: must hold {} ids for {} input tokens in blocks of {}, got {} ids, {}",
                       expected, input_tokens, block_tokens_, count, implied);
  }

  const std::string& name_;
  const TraceOptions& options_;
  TraceBuilder builder_;
  std::string where_;
  std::string format_ = "mooncake jsonl";
  bool first_ = true;
  int64_t block_tokens_ = kMooncakeBlockTokens;
  double time_unit_s_ = 1e-3;
  std::vector<int64_t> blocks_;
  int64_t rows_with_blocks_ = 0;
  int64_t rows_without_blocks_ = 0;
};

}  // namespace

Result<Trace> parse_mooncake(std::string_view text, const std::string& name, const TraceOptions& options) {
  MooncakeLoader loader(name, options);
  dom::parser parser;
  LineReader lines(text);
  while (const auto line = lines.next()) {
    dom::element element;
    const simdjson::error_code failure = parser.parse(line->data(), line->size()).get(element);
    if (failure != simdjson::SUCCESS) {
      return error(StatusCode::kParseError, "{}:{}: line: must be one JSON object, got {}", name,
                   lines.line_number(), simdjson::error_message(failure));
    }
    MLAPREFILL_RETURN_IF_ERROR(loader.add_line(element, lines.line_number()));
  }
  return std::move(loader).finish();
}

}  // namespace mlaprefill
