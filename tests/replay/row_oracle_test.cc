#include "replay/row_oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/float_formats.h"
#include "mlaprefill/plan.h"
#include "replay/random.h"
#include "verify/oracle.h"

namespace mlaprefill {
namespace {

std::vector<uint16_t> normals(int64_t count, double scale, uint64_t seed) {
  Random random(seed);
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (uint16_t& value : values) value = bf16_from_float(static_cast<float>(random.normal() * scale));
  return values;
}

/// A request of new tokens alone, its inputs, and the row problem of any of its queries.
struct Case {
  MlaDims dims{3, 64, 32, 16, 48, 0.2};
  int32_t tokens = 37;
  std::vector<uint16_t> query = normals(int64_t{37} * 3 * 48, 1.0, 1);
  std::vector<uint16_t> latent = normals(int64_t{37} * 80, 1.0, 2);
  std::vector<uint16_t> weight = normals(int64_t{3} * 80 * 64, 0.125, 3);

  RowProblem problem(int64_t token, int64_t head) const {
    RowProblem p;
    p.dims = &dims;
    p.query = query.data() + (token * 3 + head) * 48;
    p.weight = weight.data() + head * 80 * 64;
    p.num_keys = token + 1;
    p.latent = [this](int64_t key) { return latent.data() + key * 80; };
    return p;
  }
};

TEST(RowOracle, AgreesWithTheOracleThatExpandsKeys) {
  const Case c;
  const std::vector<int32_t> starts{0, c.tokens};
  const std::vector<int32_t> context{0};
  RaggedBatch batch;
  batch.query_start_loc = starts;
  batch.context_lens = context;
  const Plan plan = make_plan(c.dims, batch).value();
  std::vector<uint16_t> out(size_t{37} * 3 * 48);
  LayerTensors tensors;
  tensors.q = ConstTensor(c.query.data(), DType::kBF16, {37, 3, 48});
  tensors.kv_latent = ConstTensor(c.latent.data(), DType::kBF16, {37, 64}, {80, 1});
  tensors.k_rope = ConstTensor(c.latent.data() + 64, DType::kBF16, {37, 16}, {80, 1});
  tensors.out = Tensor(out.data(), DType::kBF16, {37, 3, 48});
  const ConstTensor kv_b_proj(c.weight.data(), DType::kBF16, {3 * 80, 64});
  const std::vector<verify::RowHead> rows{{0, 0}, {5, 2}, {36, 1}};
  for (const verify::ExpectedRow& expected : verify::expect_layer(plan, kv_b_proj, tensors, rows)) {
    const RowProblem problem = c.problem(expected.at.row, expected.at.head);
    const RowValue exact = exact_row(problem);
    EXPECT_NEAR(exact.lse, expected.lse, 1e-12);
    ASSERT_EQ(exact.out.size(), expected.out.size());
    double naive_error = 0.0;
    for (size_t i = 0; i < exact.out.size(); ++i) {
      EXPECT_NEAR(exact.out[i], expected.out[i], 1e-12);
      naive_error = std::max(naive_error, std::abs(expected.naive_out[i] - expected.out[i]));
    }
    // The tolerance is made from the same naive evaluation; the order of its sums may differ a little.
    const RowTolerance tolerance = row_tolerance(problem, exact);
    EXPECT_GE(tolerance.out, 1.5 * naive_error);
    EXPECT_LE(tolerance.out, 3.0 * naive_error + 0.02);
    EXPECT_GE(tolerance.lse, std::abs(expected.naive_lse - expected.lse));
  }
}

TEST(RowOracle, ToleranceCatchesAWrongKey) {
  Case c;
  const RowValue exact = exact_row(c.problem(36, 0));
  const RowTolerance tolerance = row_tolerance(c.problem(36, 0), exact);
  EXPECT_LT(tolerance.lse, 0.1);
  for (int64_t i = 0; i < 80; ++i) c.latent[static_cast<size_t>(20 * 80 + i)] = bf16_from_float(1.0f);
  const RowValue wrong = exact_row(c.problem(36, 0));
  double difference = 0.0;
  for (size_t i = 0; i < wrong.out.size(); ++i) {
    difference = std::max(difference, std::abs(wrong.out[i] - exact.out[i]));
  }
  EXPECT_GT(difference, tolerance.out);
}

}  // namespace
}  // namespace mlaprefill
