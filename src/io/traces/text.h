// Text without trust: lines with either ending, strict numbers and dates.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace mlaprefill {

/// Removes a UTF-8 byte-order mark.
std::string_view without_bom(std::string_view text);

/// Walks the lines of a text; LF and CRLF both end a line, the last line needs no ending.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : rest_(text) {}

  /// The next line that is not blank, or nothing at the end.
  std::optional<std::string_view> next();
  /// Number of the line `next` returned last, counted from 1.
  int64_t line_number() const { return line_number_; }

 private:
  std::string_view rest_;
  int64_t line_number_ = 0;
};

/// Fields of one CSV line, blanks and surrounding double quotes removed. A quoted field may hold commas.
std::vector<std::string_view> split_csv(std::string_view line);

/// Decimal numbers that fill the whole field, blanks around them allowed.
std::optional<int64_t> parse_int64(std::string_view field);
std::optional<double> parse_finite(std::string_view field);

/// Seconds since 1970 of `YYYY-MM-DD HH:MM:SS[.fraction][zone]`, in nanoseconds; the fraction has 1 to 9
/// digits, the zone is absent, Z or +HH:MM.
std::optional<int64_t> parse_datetime_ns(std::string_view field);

}  // namespace mlaprefill
