#include "replay/kv_b_proj.h"

#include <gtest/gtest.h>

#include <array>

#include "core/float_formats.h"
#include "io/safetensors_writer.h"
#include "io/temporary_folder.h"

namespace mlaprefill {
namespace {

constexpr MlaDims kDims{2, 144, 16, 16, 112, 1.0};  // kv_b_proj [256, 144]
constexpr int64_t kRows = 256;
constexpr int64_t kColumns = 144;
const std::string kName = "model.layers.3.self_attn.kv_b_proj.weight";

std::string write_file(const TemporaryFolder& folder, const std::vector<NamedTensor>& tensors) {
  const std::string path = folder.path("w.safetensors");
  Result<OutputFile> file = OutputFile::create(path);
  EXPECT_TRUE(file.ok() && write_safetensors(file.value(), tensors).ok() && file.value().commit().ok());
  return path;
}

TEST(KvBProj, ReadsBf16AndKeepsTheFirstHeads) {
  const TemporaryFolder folder;
  std::vector<uint16_t> weight(kRows * kColumns);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<uint16_t>(i);
  const std::string path =
      write_file(folder, {{kName, ConstTensor(weight.data(), DType::kBF16, {kRows, kColumns})}});
  const Result<std::vector<uint16_t>> loaded = load_kv_b_proj(path, 3, kDims, 1);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  ASSERT_EQ(loaded.value().size(), static_cast<size_t>(128 * kColumns));
  EXPECT_EQ(loaded.value()[1000], 1000);
  EXPECT_EQ(load_kv_b_proj(path, 4, kDims, 1).status().message(),
            path + ": must hold a tensor named ...layers.4.self_attn.kv_b_proj.weight, got none");
  MlaDims other = kDims;
  other.kv_lora_rank = 128;
  EXPECT_EQ(load_kv_b_proj(path, 3, other, 1).status().message(),
            path + ": " + kName + ": must have the shape [256, 128] of this model, got [256, 144]");
}

TEST(KvBProj, AppliesTheScaleOfEachBlockOfFp8) {
  const TemporaryFolder folder;
  const std::vector<uint8_t> weight(kRows * kColumns, f8_e4m3_from_float(1.5f));
  const std::array<float, 4> scales{1.0f, 2.0f, 4.0f, 8.0f};
  const std::string path =
      write_file(folder, {{kName, ConstTensor(weight.data(), DType::kF8E4M3, {kRows, kColumns})},
                          {kName + "_scale_inv", ConstTensor(scales.data(), DType::kF32, {2, 2})}});
  const Result<std::vector<uint16_t>> loaded = load_kv_b_proj(path, 3, kDims, 2);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const auto at = [&loaded](int64_t row, int64_t column) {
    return float_from_bf16(loaded.value()[static_cast<size_t>(row * kColumns + column)]);
  };
  EXPECT_EQ(at(127, 127), 1.5f);
  EXPECT_EQ(at(127, 128), 3.0f);
  EXPECT_EQ(at(128, 0), 6.0f);
  EXPECT_EQ(at(255, 143), 12.0f);
}

}  // namespace
}  // namespace mlaprefill
