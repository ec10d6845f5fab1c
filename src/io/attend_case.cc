#include "io/attend_case.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include <fmt/ranges.h>

#include "core/error.h"
#include "io/file.h"

namespace mlaprefill {
namespace {

constexpr int64_t kPackedRowBytes = 656;
constexpr int64_t kMaxPlainHeadDim = 1024;

constexpr std::array<std::string_view, 9> kLayerTensors{"query_start_loc", "context_lens", "q",
                                                        "kv_latent",       "k_rope",       "kv_b_proj",
                                                        "kv_cache",        "kv_scale",     "block_table"};
constexpr std::array<std::string_view, 5> kPlainTensors{"q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"};
constexpr std::initializer_list<DType> kFloats{DType::kBF16, DType::kF16, DType::kF32};

template <typename Values, typename Value>
bool contains(const Values& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Reads tensors of one file; every error starts with the file's path and the tensor's name.
class CaseReader {
 public:
  explicit CaseReader(const SafetensorsFile& file) : file_(file) {}

  template <typename... Args>
  Status bad(std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    return invalid("{}: {}: {}", file_.path(), name, fmt::format(format, std::forward<Args>(args)...));
  }

  bool has(std::string_view name) const { return file_.has(name); }
  const std::vector<int64_t>& shape(std::string_view name) const {
    return file_.header().tensors.find(name)->second.shape;
  }

  Result<OwnedTensor> tensor(std::string_view name, int rank, std::initializer_list<DType> dtypes) const {
    const auto found = file_.header().tensors.find(name);
    if (found == file_.header().tensors.end()) return bad(name, "must be in the file, got no such tensor");
    const SafetensorsEntry& entry = found->second;
    if (!entry.dtype || !contains(dtypes, *entry.dtype)) {
      std::string names;
      for (const DType dtype : dtypes) {
        names += (names.empty() ? "" : ", ") + std::string(safetensors_name(dtype));
      }
      return bad(name, "dtype must be {}{}, got {}", dtypes.size() > 1 ? "one of " : "", names,
                 entry.dtype_name);
    }
    if (entry.shape.size() != static_cast<size_t>(rank)) {
      return bad(name, "must have {} dimensions, got {}", rank, shape_text(entry.shape));
    }
    return file_.read(name);
  }

  Status integers(std::string_view name, int rank, std::vector<int32_t>& values) const {
    auto tensor = this->tensor(name, rank, {DType::kI32});
    if (!tensor.ok()) return tensor.status();
    const auto* data = reinterpret_cast<const int32_t*>(tensor->memory.data());
    values.assign(data, data + tensor->elements());
    return {};
  }

  Status floats(std::string_view name, int rank, OwnedTensor& target) const {
    return take(tensor(name, rank, kFloats), target);
  }

  static Status take(Result<OwnedTensor> tensor, OwnedTensor& target) {
    if (!tensor.ok()) return tensor.status();
    target = std::move(tensor).value();
    return {};
  }

  Status expect_extent(std::string_view name, const OwnedTensor& tensor, int axis, int64_t expected,
                       std::string_view meaning) const {
    if (tensor.extent(axis) == expected) return {};
    return bad(name, "shape[{}] must be {} = {}, got {}", axis, meaning, expected, tensor.extent(axis));
  }

  // The text of a metadata entry, or null.
  const std::string* metadata(std::string_view name) const {
    const auto found = file_.header().metadata.find(name);
    return found == file_.header().metadata.end() ? nullptr : &found->second;
  }

  template <typename Number>
  Status number(std::string_view name, std::optional<Number>& value) const {
    const std::string* entry = metadata(name);
    if (value || entry == nullptr) return {};
    const std::string_view text = trimmed(*entry);
    Number parsed{};
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), parsed);
    if (code != std::errc{} || end != text.data() + text.size()) {
      return bad("__metadata__", "{} must be {}, got {}", name,
                 std::is_integral_v<Number> ? "an integer" : "a number", quote(*entry));
    }
    value = parsed;
    return {};
  }

  Status boolean(std::string_view name, std::optional<bool>& value) const {
    const std::string* entry = metadata(name);
    if (value || entry == nullptr) return {};
    const std::string_view text = trimmed(*entry);
    if (text == "true" || text == "True" || text == "1") {
      value = true;
    } else if (text == "false" || text == "False" || text == "0") {
      value = false;
    } else {
      return bad("__metadata__", "{} must be true or false, got {}", name, quote(*entry));
    }
    return {};
  }

  Status scale(std::optional<double> given, double& value) const {
    MLAPREFILL_RETURN_IF_ERROR(number("softmax_scale", given));
    if (!given) {
      return invalid(
          "{}: softmax_scale: must be given by --softmax-scale or the file's __metadata__, got none",
          file_.path());
    }
    if (!std::isfinite(*given)) return bad("softmax_scale", "must be finite, got {}", *given);
    value = *given;
    return {};
  }

  template <typename Names>
  Status only_known(const Names& known, std::string_view kind) const {
    for (const auto& [name, entry] : file_.header().tensors) {
      if (contains(known, name)) continue;
      return invalid("{}: tensors of a {} case must be among {}, got {}", file_.path(), kind,
                     fmt::join(known, ", "), quote(name));
    }
    return {};
  }

 private:
  const SafetensorsFile& file_;
};

Status load_dims(const CaseReader& reader, const CaseOptions& options, LayerCase& layer) {
  const int64_t heads = layer.q.extent(1);
  const int64_t rope = layer.k_rope.extent(1);
  const int64_t nope = layer.q.extent(2) - rope;
  if (nope < 0) return reader.bad("q", "shape[2] must be >= k_rope's {}, got {}", rope, layer.q.extent(2));
  std::optional<int32_t> stated_nope = options.qk_nope_head_dim;
  MLAPREFILL_RETURN_IF_ERROR(reader.number("qk_nope_head_dim", stated_nope));
  if (stated_nope && *stated_nope != nope) {
    return reader.bad("qk_nope_head_dim", "must be q's shape[2] - k_rope's shape[1] = {}, got {}", nope,
                      *stated_nope);
  }
  const int64_t weight_rows = layer.kv_b_proj.extent(0);
  if (heads < 1) return reader.bad("q", "shape[1] must be >= 1 heads, got {}", heads);
  if (weight_rows % heads != 0) {
    return reader.bad("kv_b_proj", "shape[0] must be a multiple of q's {} heads, got {}", heads, weight_rows);
  }
  const int64_t v_head_dim = weight_rows / heads - nope;
  const int64_t rank = layer.kv_latent.extent(1);
  // Large values stay too large when capped, and validate() names them.
  const auto capped = [](int64_t value) {
    constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
    return static_cast<int32_t>(std::clamp(value, -kLimit, kLimit));
  };
  layer.dims.num_heads = capped(heads);
  layer.dims.kv_lora_rank = capped(rank);
  layer.dims.qk_nope_head_dim = capped(nope);
  layer.dims.qk_rope_head_dim = capped(rope);
  layer.dims.v_head_dim = capped(v_head_dim);
  MLAPREFILL_RETURN_IF_ERROR(reader.scale(options.softmax_scale, layer.dims.softmax_scale));
  if (const Status status = validate(layer.dims); !status.ok()) {
    return reader.bad("dims from q, k_rope, kv_latent and kv_b_proj", "{}", status.message());
  }
  return {};
}

Status load_cache(const CaseReader& reader, LayerCase& layer) {
  const auto with_context = std::find_if(layer.context_lens.begin(), layer.context_lens.end(),
                                         [](int32_t length) { return length > 0; });
  for (const std::string_view name : {"kv_cache", "block_table"}) {
    if (with_context != layer.context_lens.end() && !reader.has(name)) {
      return reader.bad(name, "must be in the file when a request has context, got context_lens[{}] = {}",
                        with_context - layer.context_lens.begin(), *with_context);
    }
  }
  if (reader.has("kv_cache")) {
    MLAPREFILL_RETURN_IF_ERROR(CaseReader::take(
        reader.tensor("kv_cache", 3, {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3, DType::kU8}),
        layer.kv_cache));
    const bool packed = layer.kv_cache.view.dtype == DType::kU8;
    MLAPREFILL_RETURN_IF_ERROR(packed ? reader.expect_extent("kv_cache", layer.kv_cache, 2, kPackedRowBytes,
                                                             "the packed row's bytes")
                                      : reader.expect_extent("kv_cache", layer.kv_cache, 2,
                                                             layer.dims.latent_dim(), "kv_lora_rank + rope"));
    const int64_t block_size = layer.kv_cache.extent(1);
    if (block_size < 1 || block_size > std::numeric_limits<int32_t>::max()) {
      return reader.bad("kv_cache", "shape[1] must be a block size in 1 .. 2^31 - 1, got {}", block_size);
    }
  }
  if (reader.has("block_table")) {
    MLAPREFILL_RETURN_IF_ERROR(reader.integers("block_table", 2, layer.block_table));
    const auto rows = layer.context_lens.size();
    const auto& shape = reader.shape("block_table");
    layer.block_table_cols = shape[1];
    if (static_cast<size_t>(shape[0]) != rows) {
      return reader.bad("block_table", "shape[0] must be the {} requests of context_lens, got {}", rows,
                        shape[0]);
    }
  }
  if (reader.has("kv_scale")) {
    OwnedTensor scale;
    const int rank = reader.shape("kv_scale").empty() ? 0 : 1;
    MLAPREFILL_RETURN_IF_ERROR(CaseReader::take(reader.tensor("kv_scale", rank, {DType::kF32}), scale));
    if (scale.elements() != 1) return reader.bad("kv_scale", "must have 1 element, got {}", scale.elements());
    if (!layer.kv_cache.present() || layer.kv_cache.view.dtype != DType::kF8E4M3) {
      return reader.bad(
          "kv_scale", "must come with a kv_cache of dtype F8_E4M3, got {}",
          layer.kv_cache.present() ? safetensors_name(layer.kv_cache.view.dtype) : "no kv_cache");
    }
    layer.kv_scale = *reinterpret_cast<const float*>(scale.memory.data());
    if (!std::isfinite(layer.kv_scale))
      return reader.bad("kv_scale", "must be finite, got {}", layer.kv_scale);
  }
  return {};
}

Result<AttendCase> load_layer(const CaseReader& reader, const CaseOptions& options) {
  MLAPREFILL_RETURN_IF_ERROR(reader.only_known(kLayerTensors, "layer"));
  std::optional<bool> causal = options.causal;
  MLAPREFILL_RETURN_IF_ERROR(reader.boolean("causal", causal));
  if (causal && !*causal) return reader.bad("causal", "must be true for a layer case, got false");
  LayerCase layer;
  MLAPREFILL_RETURN_IF_ERROR(reader.integers("query_start_loc", 1, layer.query_start_loc));
  MLAPREFILL_RETURN_IF_ERROR(reader.integers("context_lens", 1, layer.context_lens));
  MLAPREFILL_RETURN_IF_ERROR(reader.floats("q", 3, layer.q));
  MLAPREFILL_RETURN_IF_ERROR(reader.floats("kv_latent", 2, layer.kv_latent));
  MLAPREFILL_RETURN_IF_ERROR(reader.floats("k_rope", 2, layer.k_rope));
  MLAPREFILL_RETURN_IF_ERROR(reader.floats("kv_b_proj", 2, layer.kv_b_proj));
  MLAPREFILL_RETURN_IF_ERROR(load_dims(reader, options, layer));
  const int64_t rows = layer.q.extent(0);
  MLAPREFILL_RETURN_IF_ERROR(reader.expect_extent("kv_latent", layer.kv_latent, 0, rows, "q's rows"));
  MLAPREFILL_RETURN_IF_ERROR(reader.expect_extent("k_rope", layer.k_rope, 0, rows, "q's rows"));
  MLAPREFILL_RETURN_IF_ERROR(reader.expect_extent("kv_b_proj", layer.kv_b_proj, 1, layer.dims.kv_lora_rank,
                                                  "kv_latent's kv_lora_rank"));
  if (!layer.query_start_loc.empty() && layer.query_start_loc.back() != rows) {
    return reader.bad("query_start_loc", "last element must be q's rows = {}, got {}", rows,
                      layer.query_start_loc.back());
  }
  MLAPREFILL_RETURN_IF_ERROR(load_cache(reader, layer));
  return AttendCase(std::move(layer));
}

Result<AttendCase> load_plain(const CaseReader& reader, const CaseOptions& options) {
  MLAPREFILL_RETURN_IF_ERROR(reader.only_known(kPlainTensors, "plain"));
  if (options.qk_nope_head_dim) {
    return reader.bad("qk_nope_head_dim", "must be left out for a plain case, got {}",
                      *options.qk_nope_head_dim);
  }
  PlainCase plain;
  std::optional<bool> causal = options.causal;
  MLAPREFILL_RETURN_IF_ERROR(reader.boolean("causal", causal));
  plain.causal = causal.value_or(true);
  MLAPREFILL_RETURN_IF_ERROR(reader.scale(options.softmax_scale, plain.softmax_scale));
  MLAPREFILL_RETURN_IF_ERROR(reader.floats("q", 3, plain.q));
  MLAPREFILL_RETURN_IF_ERROR(reader.floats("k", 3, plain.k));
  MLAPREFILL_RETURN_IF_ERROR(reader.floats("v", 3, plain.v));
  MLAPREFILL_RETURN_IF_ERROR(reader.integers("cu_seqlens_q", 1, plain.cu_seqlens_q));
  MLAPREFILL_RETURN_IF_ERROR(reader.integers("cu_seqlens_k", 1, plain.cu_seqlens_k));
  for (const auto& [name, tensor] :
       {std::pair("q", &plain.q), std::pair("k", &plain.k), std::pair("v", &plain.v)}) {
    if (tensor->extent(1) < 1)
      return reader.bad(name, "shape[1] must be >= 1 heads, got {}", tensor->extent(1));
    if (tensor->extent(2) < 1 || tensor->extent(2) > kMaxPlainHeadDim) {
      return reader.bad(name, "shape[2] must be in 1 .. {}, got {}", kMaxPlainHeadDim, tensor->extent(2));
    }
  }
  MLAPREFILL_RETURN_IF_ERROR(reader.expect_extent("k", plain.k, 2, plain.q.extent(2), "q's head dim"));
  MLAPREFILL_RETURN_IF_ERROR(reader.expect_extent("v", plain.v, 0, plain.k.extent(0), "k's rows"));
  MLAPREFILL_RETURN_IF_ERROR(reader.expect_extent("v", plain.v, 1, plain.k.extent(1), "k's heads"));
  if (plain.q.extent(1) % plain.k.extent(1) != 0) {
    return reader.bad("q", "shape[1] must be a multiple of k's {} heads, got {}", plain.k.extent(1),
                      plain.q.extent(1));
  }
  return AttendCase(std::move(plain));
}

}  // namespace

Result<AttendCase> load_attend_case(const SafetensorsFile& file, const CaseOptions& options) {
  const CaseReader reader(file);
  // `q` belongs to both kinds; any other known name decides.
  for (const auto& [name, entry] : file.header().tensors) {
    if (name == "q") continue;
    if (contains(kLayerTensors, name)) return load_layer(reader, options);
    if (contains(kPlainTensors, name)) return load_plain(reader, options);
  }
  return invalid("{}: tensors must be those of a layer case ({}) or of a plain case ({}), got {} tensors",
                 file.path(), fmt::join(kLayerTensors, ", "), fmt::join(kPlainTensors, ", "),
                 file.header().tensors.size());
}

}  // namespace mlaprefill
