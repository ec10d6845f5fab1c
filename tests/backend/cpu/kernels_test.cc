// Every kernel of every table against scalar arithmetic.
#include "backend/cpu/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/flash.h"
#include "levels.h"

namespace mlaprefill::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<const KernelTable*> available_tables() {
  const CpuFacts facts = read_cpu_facts();
  std::vector<const KernelTable*> tables;
  for (const KernelTable* table :
       {&kScalarF32Kernels, &kAvx2F32Kernels, &kAvx512F32Kernels, &kAvx512Bf16Kernels, &kAmxBf16Kernels}) {
    if (missing_for(table->level, facts).empty()) tables.push_back(table);
  }
  return tables;
}

class Kernels : public testing::TestWithParam<const KernelTable*> {
 protected:
  void SetUp() override { table().enter(); }
  void TearDown() override { table().leave(); }

  const KernelTable& table() const { return *GetParam(); }
  DType operand() const { return table().operand == Operand::kBF16 ? DType::kBF16 : DType::kF32; }

  /// Element (depth, column) of a panel.
  float panel_at(const Array& panel, int64_t depth, int64_t column) const {
    return panel.get(table().panel_index(depth, column));
  }
};

TEST_P(Kernels, ConvertRowsRoundsNegatesAndPads) {
  for (DType source : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (DType rounding : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (float factor : {1.0f, -1.0f, 0.0f}) {
        Array from = Array::random(source, 3 * 70, 1);
        Array to(operand(), 3 * 64);
        ConvertArgs args{.source = from.data(),
                         .source_dtype = source,
                         .source_stride = 70,
                         .rows = 3,
                         .columns = 37,
                         .factor = factor,
                         .rounding = rounding,
                         .target = to.data(),
                         .target_stride = 64,
                         .padded_columns = 48};
        table().convert_rows(args);
        for (int64_t r = 0; r < 3; ++r) {
          for (int64_t i = 0; i < 48; ++i) {
            Array rounded(rounding, 1), expected(operand(), 1);
            rounded.set(0, i < 37 ? from.get(r * 70 + i) : 0.0f);
            expected.set(0, rounded.get(0) * factor);
            ASSERT_EQ(to.get(r * 64 + i), expected.get(0)) << r << " " << i;
          }
          ASSERT_TRUE(std::isnan(to.get(r * 64 + 48))) << "wrote past the padding";
        }
      }
    }
  }
}

TEST_P(Kernels, ConvertRowsReadsF8ThroughTheTable) {
  std::vector<float> values(256);
  std::vector<uint8_t> codes(40);
  for (size_t i = 0; i < 256; ++i) values[i] = static_cast<float>(i) * 0.5f;
  for (size_t i = 0; i < 40; ++i) codes[i] = static_cast<uint8_t>(i * 6);
  Array to(operand(), 40);
  ConvertArgs args{.source = codes.data(),
                   .source_dtype = DType::kF8E4M3,
                   .source_stride = 40,
                   .rows = 1,
                   .columns = 40,
                   .f8_values = values.data(),
                   .target = to.data(),
                   .target_stride = 40,
                   .padded_columns = 40};
  table().convert_rows(args);
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(to.get(i), values[codes[static_cast<size_t>(i)]]);
}

TEST_P(Kernels, PackTransposedZeroesMissingColumns) {
  for (int64_t count : {1, 5, 63, 64}) {
    const Array rows = Array::random(operand(), 64 * 40, 2);
    Array panel(operand(), 32 * kPanelColumns);
    table().pack_transposed(rows.bytes().data(), 40, count, 32, panel.data());
    for (int64_t depth = 0; depth < 32; ++depth) {
      for (int64_t column = 0; column < kPanelColumns; ++column) {
        ASSERT_EQ(panel_at(panel, depth, column), column < count ? rows.get(column * 40 + depth) : 0.0f);
      }
    }
  }
}

TEST_P(Kernels, PackRowsZeroesMissingElementsAndSeesInfinities) {
  for (int64_t count : {1, 6, 64}) {
    Array rows = Array::random(operand(), 64 * 80, 3);
    Array panel(operand(), 64 * kPanelColumns);
    EXPECT_TRUE(table().pack_rows(rows.data(), 80, count, 64, 48, panel.data()));
    for (int64_t depth = 0; depth < 64; ++depth) {
      for (int64_t column = 0; column < kPanelColumns; ++column) {
        const bool real = depth < count && column < 48;
        ASSERT_EQ(panel_at(panel, depth, column), real ? rows.get(depth * 80 + column) : 0.0f);
      }
    }
    for (float bad : {kInf, -kInf, std::nanf("")}) {
      rows.set((count - 1) * 80 + 47, bad);
      EXPECT_FALSE(table().pack_rows(rows.data(), 80, count, 64, 48, panel.data()));
    }
  }
}

TEST_P(Kernels, PackProductRoundsAndSeesOverflow) {
  for (DType rounding : {DType::kF32, DType::kF16, DType::kBF16}) {
    Array rows = Array::random(DType::kF32, 16 * 80, 4);
    Array panel(operand(), 32 * kPanelColumns);
    const auto* floats = static_cast<const float*>(rows.data());
    EXPECT_TRUE(table().pack_product(floats, 80, 16, 32, rounding, panel.data()));
    for (int64_t depth = 0; depth < 32; ++depth) {
      for (int64_t column = 0; column < kPanelColumns; ++column) {
        Array rounded(rounding, 1), expected(operand(), 1);
        rounded.set(0, depth < 16 ? rows.get(depth * 80 + column) : 0.0f);
        expected.set(0, rounded.get(0));
        ASSERT_EQ(panel_at(panel, depth, column), expected.get(0));
      }
    }
    rows.set(15 * 80 + 63, 1e38f);
    EXPECT_EQ(table().pack_product(floats, 80, 16, 32, rounding, panel.data()), rounding != DType::kF16);
    rows.set(15 * 80 + 63, std::nanf(""));
    EXPECT_FALSE(table().pack_product(floats, 80, 16, 32, rounding, panel.data()));
  }
}

TEST_P(Kernels, MultiplyAddsBothSegmentsForEveryRowCount) {
  const int64_t depths[2] = {96, 32};
  Array a = Array::random(operand(), 80 * 136, 5);
  Array b0 = Array::random(operand(), depths[0] * kPanelColumns, 6);
  Array b1 = Array::random(operand(), depths[1] * kPanelColumns, 7);
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 16, 17, 32, 33, 64, 65}) {
    for (bool accumulate : {false, true}) {
      Array c = Array::random(DType::kF32, 80 * 72, 8);
      const Array before = c;
      MultiplyArgs args;
      args.rows = rows;
      args.num_segments = 2;
      args.segments[0] = {a.data(), b0.data(), 136, depths[0]};
      args.segments[1] = {static_cast<std::byte*>(a.data()) + depths[0] * table().operand_bytes, b1.data(),
                          136, depths[1]};
      args.accumulate = accumulate;
      args.c = static_cast<float*>(c.data());
      args.c_stride = 72;
      table().multiply(args);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t column = 0; column < kPanelColumns; ++column) {
          double exact = accumulate ? double{before.get(r * 72 + column)} : 0.0;
          for (int64_t k = 0; k < depths[0] + depths[1]; ++k) {
            const float right = k < depths[0] ? panel_at(b0, k, column) : panel_at(b1, k - depths[0], column);
            exact += double{a.get(r * 136 + k)} * double{right};
          }
          ASSERT_NEAR(c.get(r * 72 + column), exact, 2e-5) << rows << " " << r << " " << column;
        }
        ASSERT_EQ(c.get(r * 72 + 64), before.get(r * 72 + 64)) << "wrote past 64 columns";
      }
    }
  }
}

TEST_P(Kernels, SoftmaxOfOneRowInTwoSteps) {
  constexpr int64_t kKeys = 128;
  std::vector<double> logits;
  float max = -kInf, sum = 0.0f;
  Array out = Array::random(DType::kF32, 16, 9);
  for (int64_t i = 0; i < 16; ++i) out.set(i, 0.0f);
  for (int step = 0; step < 2; ++step) {
    Array scores = Array::random(DType::kF32, kKeys, static_cast<uint32_t>(10 + step), 20.0f);
    Array p(operand(), kKeys);
    const Array before = scores;
    const int32_t begin = 3, end = 101, column_begin = 0, column_end = 128;
    SoftmaxArgs args{.rows = 1,
                     .scores = static_cast<float*>(scores.data()),
                     .score_stride = kKeys,
                     .p = p.data(),
                     .p_stride = kKeys,
                     .visible_begin = &begin,
                     .visible_end = &end,
                     .column_begin = &column_begin,
                     .column_end = &column_end,
                     .scale = 0.7f,
                     .max = &max,
                     .sum = &sum,
                     .out = static_cast<float*>(out.data()),
                     .out_stride = 16,
                     .out_columns = 16};
    table().softmax(args);
    for (int32_t j = begin; j < end; ++j) logits.push_back(double{0.7f} * double{before.get(j)});
    double exact_max = -1e300, exact_sum = 0.0;
    for (double x : logits) exact_max = std::max(exact_max, x);
    for (double x : logits) exact_sum += std::exp(x - exact_max);
    EXPECT_NEAR(max, exact_max, 1e-5);
    EXPECT_NEAR(std::log(double{sum}) + double{max}, std::log(exact_sum) + exact_max, 4e-6);
    for (int32_t j = 0; j < kKeys; ++j) {
      const bool visible = j >= begin && j < end;
      const double exact = visible ? std::exp(double{0.7f} * double{before.get(j)} - double{max}) : 0.0;
      // The exponent is a difference of two rounded products, each within 2^-23 of its size.
      const double relative = 1e-6 + std::ldexp(std::fabs(0.7 * before.get(j)) + std::fabs(max), -23) +
                              (operand() == DType::kBF16 ? std::ldexp(1.0, -8) : 0.0);
      ASSERT_NEAR(p.get(j), exact, exact * relative) << j;
    }
  }
}

TEST_P(Kernels, SoftmaxRescalesWhatWasThereBefore) {
  float max = 0.0f, sum = 3.0f;
  std::vector<float> out(16, 2.0f);
  std::vector<float> scores(64, 1.0f);
  Array p(operand(), 64);
  const int32_t begin = 0, end = 64;
  SoftmaxArgs args{.rows = 1,
                   .scores = scores.data(),
                   .score_stride = 64,
                   .p = p.data(),
                   .p_stride = 64,
                   .visible_begin = &begin,
                   .visible_end = &end,
                   .column_begin = &begin,
                   .column_end = &end,
                   .scale = 1.0f,
                   .max = &max,
                   .sum = &sum,
                   .out = out.data(),
                   .out_stride = 16,
                   .out_columns = 16};
  table().softmax(args);
  EXPECT_EQ(max, 1.0f);
  EXPECT_NEAR(sum, 64.0 + 3.0 * std::exp(-1.0), 1e-4);
  for (float value : out) EXPECT_NEAR(value, 2.0 * std::exp(-1.0), 1e-6);
}

TEST_P(Kernels, FinishScalesIntoEachDtype) {
  Array from = Array::random(DType::kF32, 2 * 40, 11);
  const float factors[2] = {0.5f, 0.0f};
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Array to(dtype, 2 * 50);
    FinishArgs args{.rows = 2,
                    .columns = 32,
                    .out = static_cast<const float*>(from.data()),
                    .out_stride = 40,
                    .factors = factors,
                    .target = to.data(),
                    .target_dtype = dtype,
                    .target_stride = 50};
    table().finish(args);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 32; ++i) {
        Array expected(dtype, 1);
        expected.set(0, from.get(r * 40 + i) * factors[r]);
        ASSERT_EQ(to.get(r * 50 + i), expected.get(0));
      }
      ASSERT_TRUE(std::isnan(to.get(r * 50 + 32)));
    }
  }
}

std::string table_name(const testing::TestParamInfo<const KernelTable*>& info) {
  return std::string(to_string(info.param->level)) +
         (info.param->operand == Operand::kBF16 ? "_bf16" : "_f32");
}

INSTANTIATE_TEST_SUITE_P(Cpu, Kernels, testing::ValuesIn(available_tables()), table_name);

}  // namespace
}  // namespace mlaprefill::cpu
