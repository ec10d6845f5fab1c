#include "backend/latent_cache.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/float_formats.h"
#include "core/tensor_access.h"

namespace mlaprefill {
namespace {

std::array<float, 256> make_f8_table() {
  std::array<float, 256> table{};
  for (size_t code = 0; code < table.size(); ++code) {
    table[code] = float_from_f8_e4m3(static_cast<uint8_t>(code));
  }
  return table;
}

void load_f8(const uint8_t* source, int64_t count, float scale, float* out) {
  static const std::array<float, 256> table = make_f8_table();
  for (int64_t i = 0; i < count; ++i) out[i] = table[source[i]] * scale;
}

void store_f8(const float* source, int64_t count, float scale, uint8_t* target) {
  for (int64_t i = 0; i < count; ++i) target[i] = f8_e4m3_from_float(source[i] / scale);
}

float packed_group_scale(const float* values) {
  float largest = 0.0f;
  for (int64_t i = 0; i < PackedRow::kGroup; ++i) largest = std::max(largest, std::fabs(values[i]));
  const float scale = largest / 448.0f;
  return scale >= std::numeric_limits<float>::min() ? scale : 1.0f;
}

}  // namespace

void load_floats(const void* source, DType dtype, int64_t count, float* out) {
  switch (dtype) {
    case DType::kF32:
      std::copy_n(static_cast<const float*>(source), count, out);
      break;
    case DType::kBF16:
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(source)[i]) << 16;
        std::memcpy(out + i, &bits, sizeof(bits));
      }
      break;
    case DType::kF8E4M3:
      load_f8(static_cast<const uint8_t*>(source), count, 1.0f, out);
      break;
    default:
      for (int64_t i = 0; i < count; ++i) out[i] = load_float(source, dtype, i);
  }
}

void store_floats(void* target, DType dtype, int64_t count, const float* source) {
  if (dtype == DType::kF32) {
    std::copy_n(source, count, static_cast<float*>(target));
    return;
  }
  for (int64_t i = 0; i < count; ++i) store_float(target, dtype, i, source[i]);
}

void read_latent_row(const KvCache& cache, int64_t block, int64_t offset, int64_t latent_dim, float* out) {
  const auto* row = static_cast<const uint8_t*>(element_address(cache.data, block, offset));
  switch (cache.data.dtype) {
    case DType::kU8: {
      std::array<float, PackedRow::kScales> scales;
      std::memcpy(scales.data(), row + PackedRow::kScalesOffsetBytes, sizeof(scales));
      for (int64_t group = 0; group < PackedRow::kScales; ++group) {
        const int64_t begin = group * PackedRow::kGroup;
        load_f8(row + begin, PackedRow::kGroup, scales[static_cast<size_t>(group)], out + begin);
      }
      load_floats(row + PackedRow::kRopeOffsetBytes, DType::kBF16, PackedRow::kRope,
                  out + PackedRow::kLatents);
      break;
    }
    case DType::kF8E4M3:
      load_f8(row, latent_dim, cache.scale, out);
      break;
    default:
      load_floats(row, cache.data.dtype, latent_dim, out);
  }
}

void write_latent_row(const KvCache& cache, int64_t block, int64_t offset, int64_t latent_dim,
                      const float* values) {
  auto* row = static_cast<uint8_t*>(element_address(cache.data, block, offset));
  switch (cache.data.dtype) {
    case DType::kU8: {
      std::array<float, PackedRow::kScales> scales;
      for (int64_t group = 0; group < PackedRow::kScales; ++group) {
        const int64_t begin = group * PackedRow::kGroup;
        const float scale = packed_group_scale(values + begin);
        scales[static_cast<size_t>(group)] = scale;
        store_f8(values + begin, PackedRow::kGroup, scale, row + begin);
      }
      std::memcpy(row + PackedRow::kScalesOffsetBytes, scales.data(), sizeof(scales));
      store_floats(row + PackedRow::kRopeOffsetBytes, DType::kBF16, PackedRow::kRope,
                   values + PackedRow::kLatents);
      break;
    }
    case DType::kF8E4M3:
      store_f8(values, latent_dim, cache.scale, row);
      break;
    default:
      store_floats(row, cache.data.dtype, latent_dim, values);
  }
}

}  // namespace mlaprefill
