#include "bench/harness.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "bench/shapes.h"

namespace mlaprefill::bench {
namespace {

Timing timing(std::vector<double> seconds) { return {std::move(seconds)}; }

TEST(Timing, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(timing({3, 1, 2}).median(), 2);
  EXPECT_EQ(timing({4, 1, 2, 3}).median(), 2.5);
  EXPECT_EQ(timing({4, 1, 2}).min(), 1);
}

TEST(PairedRatio, IntervalDropsTheRightNumberOfExtremes) {
  // For 9 pairs P(Binomial(9, 1/2) <= 1) = 10 / 512 <= 2.5 % < P(<= 2): one is cut at each end.
  Timing a;
  Timing b;
  for (int i = 1; i <= 9; ++i) {
    a.seconds.push_back(i);
    b.seconds.push_back(1.0);
  }
  const PairedRatio ratio = paired_ratio(a, b);
  EXPECT_EQ(ratio.median, 5);
  EXPECT_EQ(ratio.low, 2);
  EXPECT_EQ(ratio.high, 8);
}

TEST(PairedRatio, VerdictNeedsTheWholeInterval) {
  EXPECT_EQ(verdict({1.10, 1.05, 1.20}, 0.02), "better");
  EXPECT_EQ(verdict({0.90, 0.85, 0.95}, 0.02), "worse");
  EXPECT_EQ(verdict({1.10, 0.99, 1.20}, 0.02), "undecided");
  EXPECT_EQ(verdict({1.01, 1.01, 1.01}, 0.02), "undecided");
}

TEST(Shapes, NamesAreUniqueAndWorkIsEqualWhereItIsMeantToBe) {
  std::set<std::string> names;
  std::map<std::string, double> flop;
  for (const Shape& shape : shapes()) {
    EXPECT_TRUE(names.insert(shape.name).second) << shape.name;
    EXPECT_FALSE(shape.requests.empty()) << shape.name;
    double pairs = 0;
    for (const Request& r : shape.requests) pairs += 0.5 * r.new_tokens * (r.new_tokens + 1.0);
    flop[shape.name] = 640.0 * pairs;
    if (shape.operation == Operation::kAttention) continue;
    for (const Request& r : shape.requests) flop[shape.name] += 2.0 * 512 * 256 * r.new_tokens;
  }
  EXPECT_NEAR(flop["lognormal-as-one"] / flop["lognormal-4096"], 1.0, 0.01);
  EXPECT_NEAR(flop["layer-as-one"] / flop["layer-lognormal"], 1.0, 0.01);
}

}  // namespace
}  // namespace mlaprefill::bench
