#include <cmath>
#include <cstring>
#include <limits>

#include "backend/latent_cache.h"
#include "backend/reference/operations.h"
#include "core/float_formats.h"
#include "core/tensor_access.h"

namespace mlaprefill::reference {
namespace {

void append_packed(uint8_t* row, const std::vector<double>& values) {
  for (int64_t group = 0; group < PackedRow::kScales; ++group) {
    const double* source = values.data() + group * PackedRow::kGroup;
    double largest = 0.0;
    for (int64_t d = 0; d < PackedRow::kGroup; ++d) largest = std::fmax(largest, std::fabs(source[d]));
    auto scale = static_cast<float>(largest / 448.0);
    if (scale < std::numeric_limits<float>::min()) scale = 1.0f;
    std::memcpy(row + PackedRow::kScalesOffsetBytes + 4 * group, &scale, sizeof(scale));
    for (int64_t d = 0; d < PackedRow::kGroup; ++d) {
      row[group * PackedRow::kGroup + d] = f8_e4m3_from_float(static_cast<float>(source[d]) / scale);
    }
  }
  for (int64_t d = 0; d < PackedRow::kRope; ++d) {
    const double value = values[static_cast<size_t>(PackedRow::kLatents + d)];
    store_float(row + PackedRow::kRopeOffsetBytes, DType::kBF16, d, static_cast<float>(value));
  }
}

}  // namespace

void append(const AppendArgs& args) {
  const KvCache& cache = args.cache;
  const int64_t block_size = cache.data.shape[1];
  const float scale = cache.data.dtype == DType::kF8E4M3 ? cache.scale : 1.0f;
  for (int64_t i = 0; i < args.kv_latent.shape[0]; ++i) {
    const int64_t slot = args.slot_mapping[i];
    if (slot < 0) continue;
    std::vector<double> values = load_rows(args.kv_latent, i, 1, 0);
    const std::vector<double> rope = load_rows(args.k_rope, i, 1, 0);
    values.insert(values.end(), rope.begin(), rope.end());
    void* row = element_address(cache.data, slot / block_size, slot % block_size);
    if (cache.data.dtype == DType::kU8) {
      append_packed(static_cast<uint8_t*>(row), values);
      continue;
    }
    for (size_t d = 0; d < values.size(); ++d) {
      store_float(row, cache.data.dtype, static_cast<int64_t>(d), static_cast<float>(values[d]) / scale);
    }
  }
}

}  // namespace mlaprefill::reference
