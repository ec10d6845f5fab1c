#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "io/file.h"
#include "io/sha256.h"
#include "io/traces/loaders.h"
#include "io/traces/text.h"

namespace mlaprefill {
namespace {

namespace dom = simdjson::dom;
namespace fs = std::filesystem;

constexpr std::string_view kFormatNames[] = {"auto", "mooncake", "azure", "lengths", "agentic"};

bool is_agentic(std::string_view text) {
  dom::parser parser;
  dom::element document;
  dom::array requests;
  return parser.parse(text.data(), text.size()).get(document) == simdjson::SUCCESS &&
         document["requests"].get(requests) == simdjson::SUCCESS;
}

/// Tells the family of formats from the first line, or for JSON that spans lines from the whole text.
Result<TraceFormat> detect(std::string_view text, const std::string& name) {
  LineReader lines(text);
  const auto first = lines.next();
  if (!first) return error(StatusCode::kParseError, "{}:1: file: must hold a trace, got no content", name);
  const size_t begin = first->find_first_not_of(" \t");
  const char start = (*first)[begin];
  if (start == '[') {
    return error(
        StatusCode::kUnsupported,
        "{}:1: file: must be a trace of lengths, got a JSON array (a file of texts needs a tokenizer: give a "
        "lengths CSV with num_prefill_tokens,num_decode_tokens instead)",
        name);
  }
  if (start != '{') return TraceFormat::kLengths;
  dom::parser parser;
  if (parser.parse(first->data(), first->size()).error() == simdjson::SUCCESS) {
    return is_agentic(*first) ? TraceFormat::kAgentic : TraceFormat::kMooncake;
  }
  return is_agentic(text) ? TraceFormat::kAgentic : TraceFormat::kMooncake;
}

Status validate(const TraceOptions& options) {
  if (options.block_tokens < 0) return invalid("block_tokens: must be >= 0, got {}", options.block_tokens);
  if (!(options.time_unit_s >= 0)) return invalid("time_unit_s: must be >= 0, got {}", options.time_unit_s);
  if (options.max_input_tokens < 0) {
    return invalid("max_input_tokens: must be >= 0, got {}", options.max_input_tokens);
  }
  if (options.max_requests < 0) return invalid("max_requests: must be >= 0, got {}", options.max_requests);
  if (!(options.chars_per_token >= 1)) {
    return invalid("chars_per_token: must be >= 1, got {}", options.chars_per_token);
  }
  return {};
}

Result<Trace> parse_as(TraceFormat family, std::string_view text, const std::string& name,
                       const TraceOptions& options) {
  switch (family) {
    case TraceFormat::kMooncake:
      return parse_mooncake(text, name, options);
    case TraceFormat::kAgentic:
      return parse_agentic({{name, text}}, name, options);
    default:
      return parse_csv(text, name, options);
  }
}

Result<Trace> load_directory(const std::string& path, const TraceOptions& options) {
  std::vector<std::string> paths;
  std::error_code failure;
  for (fs::directory_iterator entry(path, failure), end; !failure && entry != end; entry.increment(failure)) {
    if (entry->path().extension() == ".json") paths.push_back(entry->path().string());
  }
  if (failure)
    return error(StatusCode::kIoError, "{}: must be a readable directory, got {}", path, failure.message());
  if (paths.empty()) return error(StatusCode::kIoError, "{}: must hold *.json session files, got none", path);
  if (options.format != TraceFormat::kAuto && options.format != TraceFormat::kAgentic) {
    return invalid("{}: a directory must be of the format agentic, got {}", path, to_string(options.format));
  }
  std::sort(paths.begin(), paths.end());

  Sha256 checksum;
  std::vector<std::string> texts;
  std::vector<std::pair<std::string, std::string_view>> files;
  int64_t bytes_left = options.max_file_bytes;
  texts.reserve(paths.size());
  for (const std::string& file : paths) {
    Result<std::string> text = read_file(file, bytes_left);
    if (!text.ok()) return text.status();
    bytes_left -= std::ssize(text.value());
    checksum.update(text.value());
    texts.push_back(std::move(text).value());
    files.emplace_back(file, without_bom(texts.back()));
  }
  Result<Trace> trace = parse_agentic(files, path, options);
  if (trace.ok()) trace->checksum = "sha256:" + checksum.hex_digest();
  return trace;
}

}  // namespace

std::string_view to_string(TraceFormat format) { return kFormatNames[static_cast<size_t>(format)]; }

Result<TraceFormat> parse_trace_format(std::string_view name) {
  for (size_t i = 0; i < std::size(kFormatNames); ++i) {
    if (kFormatNames[i] == name) return static_cast<TraceFormat>(i);
  }
  return invalid("trace format: must be one of {}, got \"{}\"", fmt::join(kFormatNames, ", "), name);
}

Result<Trace> parse_trace(std::string_view text, const std::string& name, const TraceOptions& options) {
  MLAPREFILL_RETURN_IF_ERROR(validate(options));
  const std::string_view body = without_bom(text);
  TraceFormat family = options.format;
  if (family == TraceFormat::kAuto) {
    const Result<TraceFormat> detected = detect(body, name);
    if (!detected.ok()) return detected.status();
    family = detected.value();
  }
  Result<Trace> trace = parse_as(family, body, name, options);
  if (!trace.ok()) return trace;
  Sha256 checksum;
  checksum.update(text);
  trace->checksum = "sha256:" + checksum.hex_digest();
  return trace;
}

Result<Trace> load_trace(const std::string& path, const TraceOptions& options) {
  std::error_code failure;
  if (fs::is_directory(path, failure)) {
    MLAPREFILL_RETURN_IF_ERROR(validate(options));
    return load_directory(path, options);
  }
  const Result<std::string> text = read_file(path, options.max_file_bytes);
  if (!text.ok()) return text.status();
  return parse_trace(text.value(), path, options);
}

}  // namespace mlaprefill
