#include "io/traces/text.h"

#include <charconv>
#include <chrono>
#include <cmath>

namespace mlaprefill {
namespace {

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

/// Takes `digits` decimal digits off the front of `text`.
std::optional<int> take_digits(std::string_view& text, size_t digits) {
  if (text.size() < digits) return std::nullopt;
  int value = 0;
  for (size_t i = 0; i < digits; ++i) {
    if (text[i] < '0' || text[i] > '9') return std::nullopt;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(digits);
  return value;
}

bool take(std::string_view& text, char expected) {
  if (text.empty() || text.front() != expected) return false;
  text.remove_prefix(1);
  return true;
}

std::optional<int64_t> take_fraction_ns(std::string_view& text) {
  if (!take(text, '.')) return 0;
  int64_t nanoseconds = 0;
  size_t digits = 0;
  for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
    if (digits == 9) return std::nullopt;
    nanoseconds = nanoseconds * 10 + (text[digits] - '0');
  }
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  for (; digits < 9; ++digits) nanoseconds *= 10;
  return nanoseconds;
}

std::optional<std::chrono::minutes> take_zone(std::string_view& text) {
  if (text.empty() || take(text, 'Z')) return std::chrono::minutes(0);
  const bool west = text.front() == '-';
  if (!take(text, west ? '-' : '+')) return std::nullopt;
  const auto hours = take_digits(text, 2);
  take(text, ':');
  const auto minutes = take_digits(text, 2);
  if (!hours || !minutes || *hours > 23 || *minutes > 59) return std::nullopt;
  const std::chrono::minutes offset(*hours * 60 + *minutes);
  return west ? -offset : offset;
}

}  // namespace

std::string_view without_bom(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  return text;
}

std::optional<std::string_view> LineReader::next() {
  while (!rest_.empty()) {
    const size_t end = rest_.find('\n');
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    ++line_number_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!trim(line).empty()) return line;
  }
  return std::nullopt;
}

std::vector<std::string_view> split_csv(std::string_view line) {
  std::vector<std::string_view> fields;
  size_t begin = 0;
  bool quoted = false;
  for (size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') quoted = !quoted;
    if (i < line.size() && (line[i] != ',' || quoted)) continue;
    std::string_view field = trim(line.substr(begin, i - begin));
    if (field.size() >= 2 && field.front() == '"' && field.back() == '"')
      field = field.substr(1, field.size() - 2);
    fields.push_back(field);
    begin = i + 1;
  }
  return fields;
}

std::optional<int64_t> parse_int64(std::string_view field) {
  field = trim(field);
  int64_t value = 0;
  const auto [end, failure] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (failure != std::errc() || end != field.data() + field.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_finite(std::string_view field) {
  field = trim(field);
  double value = 0.0;
  const auto [end, failure] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (failure != std::errc() || end != field.data() + field.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<int64_t> parse_datetime_ns(std::string_view field) {
  using namespace std::chrono;
  std::string_view rest = trim(field);
  const auto year_number = take_digits(rest, 4);
  if (!year_number || !take(rest, '-')) return std::nullopt;
  const auto month_number = take_digits(rest, 2);
  if (!month_number || !take(rest, '-')) return std::nullopt;
  const auto day_number = take_digits(rest, 2);
  if (!day_number || (!take(rest, ' ') && !take(rest, 'T'))) return std::nullopt;
  const auto hour = take_digits(rest, 2);
  if (!hour || !take(rest, ':')) return std::nullopt;
  const auto minute = take_digits(rest, 2);
  if (!minute || !take(rest, ':')) return std::nullopt;
  const auto second = take_digits(rest, 2);
  const auto fraction = second ? take_fraction_ns(rest) : std::nullopt;
  const auto zone = fraction ? take_zone(rest) : std::nullopt;
  if (!zone || !rest.empty() || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;

  const year_month_day date{year(*year_number), month(static_cast<unsigned>(*month_number)),
                            day(static_cast<unsigned>(*day_number))};
  // The range that fits 64-bit nanoseconds with room to spare.
  if (!date.ok() || *year_number < 1970 || *year_number > 2200) return std::nullopt;
  const auto time =
      sys_days(date).time_since_epoch() + hours(*hour) + minutes(*minute) + seconds(*second) - *zone;
  return duration_cast<nanoseconds>(time).count() + *fraction;
}

}  // namespace mlaprefill
