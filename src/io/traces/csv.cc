#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "io/traces/loaders.h"
#include "io/traces/text.h"

namespace mlaprefill {
namespace {

constexpr int64_t kSharedPrefixBlockTokens = 64;

enum class Column : uint8_t {
  kDateTime,  ///< arrival as a date
  kSeconds,   ///< arrival as a number
  kInput,
  kOutput,
  kInputChars,
  kOutputChars,
  kShared,  ///< tokens of the prefix an earlier turn of the session has
  kSharedChars,
  kSession,
  kThinkTime,
  kCount
};

struct KnownColumn {
  std::string_view header;
  Column column;
};

/// Column names in the wild: Azure, vidur and sarathi-serve lengths, BurstGPT, coding-agent session lengths,
/// character counts.
constexpr KnownColumn kKnownColumns[] = {
    {"TIMESTAMP", Column::kDateTime},
    {"ContextTokens", Column::kInput},
    {"GeneratedTokens", Column::kOutput},
    {"arrived_at", Column::kSeconds},
    {"num_prefill_tokens", Column::kInput},
    {"num_decode_tokens", Column::kOutput},
    {"Timestamp", Column::kSeconds},
    {"Request tokens", Column::kInput},
    {"Response tokens", Column::kOutput},
    {"session", Column::kSession},
    {"t_s", Column::kSeconds},
    {"input_tokens", Column::kInput},
    {"output_tokens", Column::kOutput},
    {"prefix_hit_tokens", Column::kShared},
    {"think_time_s", Column::kThinkTime},
    {"input_chars", Column::kInputChars},
    {"output_chars", Column::kOutputChars},
    {"common_prefix_chars_with_previous_turn", Column::kSharedChars},
};

class CsvLoader {
 public:
  CsvLoader(const std::string& name, const TraceOptions& options) : name_(name), builder_(options) {
    index_.fill(-1);
    block_tokens_ = options.block_tokens > 0 ? options.block_tokens : kSharedPrefixBlockTokens;
    time_unit_s_ = options.time_unit_s > 0 ? options.time_unit_s : 1.0;
  }

  Status read_header(std::string_view line, TraceFormat format) {
    where_ = name_ + ":1";
    const auto fields = split_csv(line);
    num_columns_ = std::ssize(fields);
    for (int64_t i = 0; i < num_columns_; ++i) {
      for (const KnownColumn& known : kKnownColumns) {
        if (known.header != fields[static_cast<size_t>(i)]) continue;
        int64_t& place = index_[static_cast<size_t>(known.column)];
        if (place >= 0)
          return parse_error("header: must name each column once, got \"{}\" twice", known.header);
        place = i;
      }
    }
    const bool azure = has(Column::kDateTime);
    if (!has(Column::kInput) && !has(Column::kInputChars)) {
      return parse_error(
          "header: must name a column of input lengths (ContextTokens, num_prefill_tokens, "
          "input_tokens, \"Request tokens\" or input_chars), got \"{}\"",
          line.substr(0, 80));
    }
    if ((format == TraceFormat::kAzure && !azure) || (format == TraceFormat::kLengths && azure)) {
      return parse_error("header: must be that of the format \"{}\", got \"{}\"", to_string(format),
                         line.substr(0, 80));
    }
    format_ = azure ? "azure csv" : has(Column::kInput) ? "lengths csv" : "character-count csv";
    if (has(Column::kInputChars)) {
      builder_.notice(
          fmt::format("the file counts characters: lengths are estimates at {} characters a token",
                      builder_.options().chars_per_token));
    }
    return {};
  }

  Status add_line(std::string_view line, int64_t line_number) {
    where_ = fmt::format("{}:{}", name_, line_number);
    fields_ = split_csv(line);
    if (std::ssize(fields_) != num_columns_) {
      return parse_error("line: must have {} fields like the header, got {}", num_columns_, fields_.size());
    }
    TraceRow row;
    int64_t shared_tokens = 0;
    MLAPREFILL_RETURN_IF_ERROR(read_length(Column::kInput, Column::kInputChars, row.input_tokens));
    MLAPREFILL_RETURN_IF_ERROR(read_length(Column::kOutput, Column::kOutputChars, row.output_tokens));
    MLAPREFILL_RETURN_IF_ERROR(read_length(Column::kShared, Column::kSharedChars, shared_tokens));
    MLAPREFILL_RETURN_IF_ERROR(read_arrival(row));
    if (const auto field = text(Column::kThinkTime); field && !field->empty()) {
      const auto seconds = parse_finite(*field);
      if (!seconds || *seconds < 0)
        return parse_error("think_time_s: must be seconds >= 0, got \"{}\"", *field);
      row.delay_s = *seconds;
    }
    const auto session = text(Column::kSession);
    if (session) row.session = builder_.session(*session);
    return with_place(add_row(row, shared_tokens));
  }

  Trace finish() && {
    if (missing_tokens_ > 0) {
      builder_.notice(
          fmt::format("{} prefix tokens are longer than any earlier turn of their session: taken as new",
                      missing_tokens_));
    }
    return std::move(builder_).finish(name_, format_, block_tokens_);
  }

 private:
  Status add_row(const TraceRow& row, int64_t shared_tokens) {
    if (!has(Column::kShared) && !has(Column::kSharedChars)) return builder_.add(row, {});
    const Result<int64_t> missing = builder_.add_with_shared_prefix(row, shared_tokens, block_tokens_);
    if (missing.ok()) missing_tokens_ += missing.value();
    return missing.status();
  }

  Status with_place(const Status& status) const {
    return status.ok() ? status : Status(status.code(), fmt::format("{}: {}", where_, status.message()));
  }

  bool has(Column column) const { return index_[static_cast<size_t>(column)] >= 0; }

  std::optional<std::string_view> text(Column column) const {
    if (!has(column)) return std::nullopt;
    return fields_[static_cast<size_t>(index_[static_cast<size_t>(column)])];
  }

  template <typename... Args>
  Status parse_error(fmt::format_string<Args...> format, Args&&... args) const {
    return error(StatusCode::kParseError, "{}: {}", where_, fmt::format(format, std::forward<Args>(args)...));
  }

  /// A length in tokens, or one in characters taken as tokens; a missing column is 0.
  Status read_length(Column tokens_column, Column chars_column, int64_t& tokens) const {
    const bool chars = !has(tokens_column);
    const Column column = chars ? chars_column : tokens_column;
    const auto field = text(column);
    if (!field) return {};
    const auto number = parse_int64(*field);
    if (!number || *number < 0) {
      return parse_error("field {}: must be a whole number >= 0, got \"{}\"",
                         index_[static_cast<size_t>(column)] + 1, field->substr(0, 40));
    }
    tokens = *number;
    if (chars) {
      const double estimate = static_cast<double>(*number) / builder_.options().chars_per_token;
      tokens =
          static_cast<int64_t>(column == Column::kSharedChars ? std::floor(estimate) : std::ceil(estimate));
    }
    return {};
  }

  Status read_arrival(TraceRow& row) {
    if (const auto field = text(Column::kDateTime)) {
      const auto time_ns = parse_datetime_ns(*field);
      if (!time_ns) {
        return parse_error("TIMESTAMP: must be like 2023-11-16 18:17:03.9799600, got \"{}\"",
                           field->substr(0, 40));
      }
      if (!first_time_ns_) first_time_ns_ = *time_ns;
      row.arrival_s = static_cast<double>(*time_ns - *first_time_ns_) * 1e-9;
    } else if (const auto number = text(Column::kSeconds)) {
      const auto seconds = parse_finite(*number);
      if (!seconds) return parse_error("arrival: must be a number, got \"{}\"", number->substr(0, 40));
      row.arrival_s = *seconds * time_unit_s_;
    }
    return {};
  }

  const std::string& name_;
  TraceBuilder builder_;
  std::string where_;
  std::string format_;
  std::array<int64_t, static_cast<size_t>(Column::kCount)> index_{};
  int64_t num_columns_ = 0;
  int64_t block_tokens_ = 0;
  double time_unit_s_ = 1.0;
  std::vector<std::string_view> fields_;
  std::optional<int64_t> first_time_ns_;
  int64_t missing_tokens_ = 0;
};

}  // namespace

Result<Trace> parse_csv(std::string_view text, const std::string& name, const TraceOptions& options) {
  CsvLoader loader(name, options);
  LineReader lines(text);
  const auto header = lines.next();
  if (!header)
    return error(StatusCode::kParseError, "{}:1: header: must name the columns, got nothing", name);
  MLAPREFILL_RETURN_IF_ERROR(loader.read_header(*header, options.format));
  while (const auto line = lines.next())
    MLAPREFILL_RETURN_IF_ERROR(loader.add_line(*line, lines.line_number()));
  return std::move(loader).finish();
}

}  // namespace mlaprefill
