// Causal masks are bottom-right for each request, at every block position.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/backend_test.h"

namespace mlaprefill {
namespace {

using verify::AttentionCase;
using verify::Outputs;

class Causal : public BackendTest {};

TEST_P(Causal, FewerQueriesThanKeysSeeFromTheBottomRight) {
  expect_agrees(AttentionCase{.name = "bottom right", .requests = {{3, 128}, {1, 128}, {128, 128}}},
                backend());
}

TEST_P(Causal, OneQuerySeesEveryKey) {
  AttentionCase one{.name = "one query", .requests = {{1, 128}}};
  verify::Report report;
  const Outputs causal = verify::attend_once(verify::AttentionInputs(one), backend(), false, report);
  one.causal = false;
  const Outputs full = verify::attend_once(verify::AttentionInputs(one), backend(), false, report);
  verify::check_same("one query", causal, full, report);
  EXPECT_EQ(report.problem(), "");
}

TEST_P(Causal, FullyMaskedQueriesAreEmpty) {
  struct Lengths {
    int64_t queries, keys;
  };
  for (const auto& [queries, keys] : {Lengths{5, 2}, {7, 3}, {300, 1}, {6, 0}}) {
    AttentionCase one{.name = "masked", .requests = {{queries, keys}}, .heads = 4, .kv_heads = 4};
    expect_agrees(one, backend());
    verify::Report report;
    const Outputs got = verify::attend_once(verify::AttentionInputs(one), backend(), false, report);
    ASSERT_RAN(report);
    for (int64_t row = 0; row < queries; ++row) {
      const bool masked = row < queries - keys;
      EXPECT_EQ(std::isinf(got.lse.get(3, row)), masked) << row;
      EXPECT_EQ(got.out.get(row, 3, 100) == 0.0f, masked) << row;
    }
  }
}

TEST_P(Causal, TheFlagIsNotIgnored) {
  AttentionCase one{.name = "flag", .requests = {{4, 4}}};
  verify::Report report;
  const Outputs causal = verify::attend_once(verify::AttentionInputs(one), backend(), false, report);
  one.causal = false;
  const Outputs full = verify::attend_once(verify::AttentionInputs(one), backend(), false, report);
  ASSERT_RAN(report);
  EXPECT_NE(causal.lse.get(0, 0), full.lse.get(0, 0));
  EXPECT_NE(causal.out.get(2, 0, 0), full.out.get(2, 0, 0));
  EXPECT_EQ(causal.out.get(3, 0, 0), full.out.get(3, 0, 0));
}

TEST_P(Causal, WholeKeyBlocksMaskedForARow) {
  expect_agrees(AttentionCase{.name = "masked blocks", .requests = {{1200, 600}}, .heads = 1, .kv_heads = 1},
                backend());
}

MLAPREFILL_FOR_EVERY_BACKEND(Causal);

}  // namespace
}  // namespace mlaprefill
