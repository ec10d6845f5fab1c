#include "replay/kv_b_proj.h"

#include <fmt/format.h>

#include <string_view>

#include "core/error.h"
#include "core/float_formats.h"
#include "io/safetensors_file.h"

namespace mlaprefill {
namespace {

constexpr int64_t kScaleBlock = 128;

/// The tensor whose name ends in `suffix`, whatever stands before it.
Result<std::string> find_tensor(const SafetensorsFile& file, const std::string& suffix) {
  for (const auto& [name, entry] : file.header().tensors) {
    const std::string_view text = name;
    if (text.ends_with(suffix) &&
        (text.size() == suffix.size() || text[text.size() - suffix.size() - 1] == '.')) {
      return name;
    }
  }
  return invalid("{}: must hold a tensor named ...{}, got none", file.path(), suffix);
}

Status check_shape(const SafetensorsFile& file, const std::string& name, const OwnedTensor& tensor,
                   int64_t rows, int64_t columns) {
  if (tensor.view.rank == 2 && tensor.extent(0) == rows && tensor.extent(1) == columns) return {};
  const auto rank = static_cast<size_t>(tensor.view.rank);
  return invalid("{}: {}: must have the shape [{}, {}] of this model, got {}", file.path(), name, rows,
                 columns, shape_text(std::span(tensor.view.shape).first(rank)));
}

}  // namespace

Result<std::vector<uint16_t>> load_kv_b_proj(const std::string& path, int64_t layer, const MlaDims& dims,
                                             int64_t num_heads) {
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file.ok()) return file.status();
  const Result<std::string> name =
      find_tensor(file.value(), fmt::format("layers.{}.self_attn.kv_b_proj.weight", layer));
  if (!name.ok()) return name.status();
  const Result<OwnedTensor> weight = file->read(name.value());
  if (!weight.ok()) return weight.status();
  const int64_t rows = dims.num_heads * dims.expanded_head_dim();
  const int64_t columns = dims.kv_lora_rank;
  MLAPREFILL_RETURN_IF_ERROR(check_shape(file.value(), name.value(), weight.value(), rows, columns));

  const DType dtype = weight->view.dtype;
  OwnedTensor scales;
  if (dtype == DType::kF8E4M3) {
    const std::string scale_name = name.value() + "_scale_inv";
    Result<OwnedTensor> read = file->read(scale_name);
    if (!read.ok()) return read.status();
    scales = std::move(read).value();
    MLAPREFILL_RETURN_IF_ERROR(check_shape(file.value(), scale_name, scales,
                                           (rows + kScaleBlock - 1) / kScaleBlock,
                                           (columns + kScaleBlock - 1) / kScaleBlock));
    if (scales.view.dtype != DType::kF32) {
      return invalid("{}: {}: must be F32, got {}", path, scale_name, to_string(scales.view.dtype));
    }
  } else if (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32) {
    return error(StatusCode::kUnsupported, "{}: {}: must be bf16, f16, f32 or f8_e4m3, got {}", path,
                 name.value(), to_string(dtype));
  }

  const int64_t kept_rows = num_heads * dims.expanded_head_dim();
  std::vector<uint16_t> values(static_cast<size_t>(kept_rows * columns));
  for (int64_t row = 0; row < kept_rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      float value = load_float(weight->view.data, dtype, row * columns + column);
      if (scales.present()) {
        value *= load_float(scales.view.data, DType::kF32,
                            row / kScaleBlock * scales.extent(1) + column / kScaleBlock);
      }
      values[static_cast<size_t>(row * columns + column)] = bf16_from_float(value);
    }
  }
  return values;
}

}  // namespace mlaprefill
