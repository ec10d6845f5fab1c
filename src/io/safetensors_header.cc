#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "io/file.h"
#include "io/owned_tensor.h"

namespace mlaprefill {
namespace {

struct FormatDType {
  std::string_view name;
  int64_t bits;
  std::optional<DType> dtype;
};

constexpr std::array<FormatDType, 20> kFormatDTypes{{
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"F8_E4M3", 8, DType::kF8E4M3},
    {"U8", 8, DType::kU8},
    {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64},
    {"F64", 64, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"F4", 4, {}},
    {"BOOL", 8, {}},
    {"I8", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"U32", 32, {}},
    {"U64", 64, {}},
    {"C64", 64, {}},
}};

const FormatDType* find_dtype(std::string_view name) {
  const auto* found = std::find_if(kFormatDTypes.begin(), kFormatDTypes.end(),
                                   [&](const FormatDType& dtype) { return dtype.name == name; });
  return found == kFormatDTypes.end() ? nullptr : found;
}

std::string known_dtypes() {
  std::string names;
  for (const FormatDType& dtype : kFormatDTypes) {
    names += (names.empty() ? "" : ", ") + std::string(dtype.name);
  }
  return names;
}

// Builds the header while the JSON parser walks the text. Whatever is not of the format's fixed shape stops
// the walk, so hostile nesting never becomes a document in memory.
class HeaderBuilder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderBuilder(std::string_view where) : where_(where) {}

  Status take_status() { return std::move(status_); }
  SafetensorsHeader take_header() { return std::move(header_); }

  bool null() override {
    if (place_ == Place::kTop && key_ == kMetadataKey) return true;
    return unexpected("null");
  }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_float(double, const std::string& text) override { return unexpected(text); }
  bool number_integer(int64_t value) override { return unexpected(std::to_string(value)); }
  bool binary(nlohmann::json::binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    const bool fits = value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!fits) return unexpected(std::to_string(value));
    if (place_ == Place::kShape) {
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && offset_count_ < 2) {
      offsets_[offset_count_++] = static_cast<int64_t>(value);
      return true;
    }
    return unexpected(std::to_string(value));
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = std::move(text);
      return true;
    }
    if (place_ != Place::kTensor || key_ != "dtype") return unexpected("the string " + quote(text));
    const FormatDType* dtype = find_dtype(text);
    if (dtype == nullptr) {
      return fail("dtype must be one of " + known_dtypes() + ", got " + quote(text));
    }
    entry_.dtype_name = dtype->name;
    entry_.dtype = dtype->dtype;
    bits_ = dtype->bits;
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return unexpected("an object");
    if (key_ == kMetadataKey) {
      place_ = Place::kMetadata;
      return true;
    }
    place_ = Place::kTensor;
    tensor_ = key_;
    entry_ = {};
    seen_fields_ = 0;
    return true;
  }

  bool key(std::string& name) override {
    key_ = std::move(name);
    switch (place_) {
      case Place::kTop:
        if (key_ == kMetadataKey) return std::exchange(metadata_seen_, true) ? repeated() : true;
        return header_.tensors.contains(key_) ? repeated() : true;
      case Place::kMetadata:
        return header_.metadata.contains(key_) ? repeated() : true;
      default:
        return tensor_field();
    }
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype") return unexpected("an array");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    offset_count_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offset_count_ != 2) {
      return fail("data_offsets must be two numbers, got " + std::to_string(offset_count_));
    }
    place_ = Place::kTensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (!finish_tensor()) return false;
      header_.tensors.emplace(std::move(tensor_), std::move(entry_));
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& what) override {
    // The library's own text is "[json.exception...] what happened".
    std::string_view text = what.what();
    if (const size_t end = text.find("] "); end != std::string_view::npos) text.remove_prefix(end + 2);
    status_ = error(StatusCode::kParseError, "{}: header must be JSON, got an error at byte {}: {}", where_,
                    position, quote(text));
    return false;
  }

 private:
  enum class Place : uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  static constexpr std::string_view kMetadataKey = "__metadata__";
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  bool fail(const std::string& requirement) {
    status_ = error(StatusCode::kParseError, "{}: {}: {}", where_, quote(tensor_), requirement);
    return false;
  }

  bool unexpected(const std::string& got) {
    std::string_view expected = "header must be an object";
    std::string subject = "header";
    switch (place_) {
      case Place::kStart:
      case Place::kEnd:
        break;
      case Place::kTop:
        subject = quote(key_);
        expected = "must be an object";
        break;
      case Place::kMetadata:
        subject = "'__metadata__': " + quote(key_);
        expected = "must be a string";
        break;
      case Place::kTensor:
        subject = quote(tensor_) + ": " + key_;
        expected = key_ == "dtype" ? "must be a string" : "must be an array";
        break;
      case Place::kShape:
        subject = quote(tensor_) + ": shape";
        expected = "must be integers in 0 .. 2^63 - 1";
        break;
      case Place::kOffsets:
        subject = quote(tensor_) + ": data_offsets";
        expected = "must be two integers in 0 .. 2^63 - 1";
        break;
    }
    status_ = error(StatusCode::kParseError, "{}: {}: {}, got {}", where_, subject, expected, got);
    return false;
  }

  bool repeated() {
    status_ = error(StatusCode::kParseError, "{}: {}: must appear once, got it again", where_, quote(key_));
    return false;
  }

  bool tensor_field() {
    const auto* found = std::find(kFields.begin(), kFields.end(), key_);
    if (found == kFields.end()) {
      return fail("fields must be dtype, shape and data_offsets, got " + quote(key_));
    }
    const unsigned bit = 1u << (found - kFields.begin());
    if ((seen_fields_ & bit) != 0) return repeated();
    seen_fields_ |= bit;
    return true;
  }

  // Size from dtype and shape, in checked arithmetic, against the size from the offsets.
  bool finish_tensor() {
    for (size_t i = 0; i < kFields.size(); ++i) {
      if ((seen_fields_ & (1u << i)) == 0) return fail("must have " + std::string(kFields[i]) + ", got none");
    }
    int64_t total_bits = bits_;
    for (const int64_t extent : entry_.shape) {
      if (__builtin_mul_overflow(total_bits, extent, &total_bits)) {
        return fail("size in bits must fit 63 bits, got shape " + shape_text(entry_.shape));
      }
    }
    if (total_bits % 8 != 0)
      return fail("size must be whole bytes, got " + std::to_string(total_bits) + " bits");
    const auto [begin, end] = offsets_;
    if (begin > end) {
      return fail(fmt::format("data_offsets must not decrease, got [{}, {}]", begin, end));
    }
    entry_.begin_bytes = begin;
    entry_.size_bytes = end - begin;
    if (entry_.size_bytes != total_bits / 8) {
      return fail(fmt::format("data_offsets must span {} bytes for {} {}, got {}", total_bits / 8,
                              entry_.dtype_name, shape_text(entry_.shape), entry_.size_bytes));
    }
    return true;
  }

  std::string_view where_;
  Status status_;
  SafetensorsHeader header_;
  Place place_ = Place::kStart;
  bool metadata_seen_ = false;
  std::string key_;
  std::string tensor_;
  SafetensorsEntry entry_;
  int64_t bits_ = 0;
  unsigned seen_fields_ = 0;
  std::array<int64_t, 2> offsets_{};
  size_t offset_count_ = 0;
};

// The tensors must tile the data: no overlap, no gap, nothing past the end.
Status check_coverage(std::string_view where, const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<std::pair<const std::string*, const SafetensorsEntry*>> by_place;
  by_place.reserve(header.tensors.size());
  for (const auto& [name, entry] : header.tensors) by_place.emplace_back(&name, &entry);
  std::sort(by_place.begin(), by_place.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin_bytes, a.second->size_bytes) <
           std::pair(b.second->begin_bytes, b.second->size_bytes);
  });
  int64_t covered = 0;
  for (const auto& [name, entry] : by_place) {
    if (entry->begin_bytes != covered) {
      return error(StatusCode::kParseError,
                   "{}: {}: data_offsets must start at {}, where the tensor before it ends, got {}", where,
                   quote(*name), covered, entry->begin_bytes);
    }
    covered += entry->size_bytes;
    if (covered > data_bytes) {
      return error(StatusCode::kParseError, "{}: {}: data_offsets must end within the {} data bytes, got {}",
                   where, quote(*name), data_bytes, covered);
    }
  }
  if (covered != data_bytes) {
    return error(StatusCode::kParseError, "{}: must end after its {} data bytes, got {}", where, covered,
                 data_bytes);
  }
  return {};
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  const auto* found = std::find_if(kFormatDTypes.begin(), kFormatDTypes.end(),
                                   [&](const FormatDType& entry) { return entry.dtype == dtype; });
  return found->name;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view where, std::string_view text,
                                                   int64_t data_bytes) {
  if (!text.starts_with('{')) {
    return error(StatusCode::kParseError, "{}: header must start with '{{', got {}", where,
                 quote(text.substr(0, 1)));
  }
  HeaderBuilder builder(where);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return builder.take_status();
  SafetensorsHeader header = builder.take_header();
  MLAPREFILL_RETURN_IF_ERROR(check_coverage(where, header, data_bytes));
  return header;
}

}  // namespace mlaprefill
