// What the CPU backend's tests share: levels this machine offers, random tensors.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "core/float_formats.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {

inline std::vector<std::string> available_levels() {
  const CpuFacts facts = read_cpu_facts();
  std::vector<std::string> names;
  for (IsaLevel level :
       {IsaLevel::kScalar, IsaLevel::kAvx2, IsaLevel::kAvx512, IsaLevel::kAvx512Bf16, IsaLevel::kAmxBf16}) {
    if (missing_for(level, facts).empty()) names.emplace_back(to_string(level));
  }
  return names;
}

inline std::unique_ptr<Backend> open_level(const std::string& isa, int32_t num_threads = 2) {
  BackendOptions options;
  options.isa = isa;
  options.num_threads = num_threads;
  auto backend = open_backend("cpu", options);
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  return std::move(backend).value();
}

/// Owns the elements of one tensor of a float format.
class Array {
 public:
  Array() = default;
  Array(DType dtype, int64_t count)
      : dtype_(dtype), bytes_(static_cast<size_t>(count * size_bytes(dtype)), std::byte{0xFF}) {}

  static Array random(DType dtype, int64_t count, uint32_t seed, float range = 1.0f) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-range, range);
    Array array(dtype, count);
    for (int64_t i = 0; i < count; ++i) array.set(i, uniform(generator));
    return array;
  }

  void* data() { return bytes_.data(); }
  DType dtype() const { return dtype_; }
  float get(int64_t index) const { return load_float(bytes_.data(), dtype_, index); }
  void set(int64_t index, float value) { store_float(bytes_.data(), dtype_, index, value); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  DType dtype_ = DType::kF32;
  std::vector<std::byte> bytes_;
};

/// A parameterised test that runs once for each level.
class EachLevel : public testing::TestWithParam<std::string> {};

#define MLAPREFILL_FOR_EACH_LEVEL(suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(Cpu, suite, testing::ValuesIn(::mlaprefill::cpu::available_levels()), \
                           [](const auto& param) { return param.param; })

}  // namespace mlaprefill::cpu
