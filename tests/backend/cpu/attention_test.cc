// Ragged attention of every ISA level against the fp64 oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "levels.h"
#include "support/allocation_count.h"
#include "verify/compare.h"
#include "verify/oracle.h"

namespace mlaprefill::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Shape {
  int64_t heads = 3;
  int64_t kv_heads = 3;
  int64_t qk_dim = 192;
  int64_t rope = 64;  ///< 0: no shared part
  int64_t v_dim = 128;
};

/// Tensors of one call; out starts as NaN, LSE as 7.
struct Case {
  Case(DType dtype, Shape shape_, std::vector<AttentionSpan> spans_, uint32_t seed = 1)
      : shape(shape_), spans(std::move(spans_)) {
    for (const AttentionSpan& span : spans) {
      q_rows = std::max(q_rows, span.q_row + span.q_len);
      k_rows = std::max(k_rows, span.k_row + span.k_len);
    }
    q = Array::random(dtype, q_rows * shape.heads * shape.qk_dim, seed);
    k = Array::random(dtype, k_rows * shape.kv_heads * (shape.qk_dim - shape.rope), seed + 1);
    rope = Array::random(dtype, k_rows * shape.rope, seed + 2);
    v = Array::random(dtype, k_rows * shape.kv_heads * shape.v_dim, seed + 3);
    out = Array(dtype, q_rows * shape.heads * shape.v_dim);
    lse.assign(static_cast<size_t>(shape.heads * q_rows), 7.0f);
  }

  AttentionArgs args() {
    AttentionArgs a;
    a.q = ConstTensor(q.data(), q.dtype(), {q_rows, shape.heads, shape.qk_dim});
    a.k = ConstTensor(k.data(), k.dtype(), {k_rows, shape.kv_heads, shape.qk_dim - shape.rope});
    if (shape.rope > 0) a.k_rope = ConstTensor(rope.data(), rope.dtype(), {k_rows, shape.rope});
    a.v = ConstTensor(v.data(), v.dtype(), {k_rows, shape.kv_heads, shape.v_dim});
    a.spans = spans;
    a.softmax_scale = scale;
    a.out = Tensor(out.data(), out.dtype(), {q_rows, shape.heads, shape.v_dim});
    a.lse = {lse.data(), q_rows, 1, LseBase::kNatural};
    return a;
  }

  void expect_exact(const Backend& backend) {
    const AttentionArgs a = args();
    const Status status = backend.attention(a, {});
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<int64_t> heads = verify::all_heads(shape.heads);
    const auto expected = verify::expect_attention(a, heads);
    const verify::Comparison comparison = verify::compare(expected, a.out, a.lse);
    EXPECT_TRUE(comparison.ok()) << comparison.failure;
  }

  Shape shape;
  std::vector<AttentionSpan> spans;
  double scale = 0.11;
  int64_t q_rows = 0;
  int64_t k_rows = 0;
  Array q, k, rope, v, out;
  std::vector<float> lse;
};

std::vector<AttentionSpan> causal_span(int64_t q_len, int64_t k_len) {
  return {{.q_row = 0, .q_len = q_len, .k_row = 0, .k_len = k_len, .causal_offset = k_len - q_len}};
}

/// Lengths around every tile size, empty rows and empty keys among them.
std::vector<AttentionSpan> ragged(bool causal) {
  const std::vector<std::pair<int64_t, int64_t>> lens = {{5, 7},   {0, 9},   {3, 0},   {1, 64},  {33, 130},
                                                         {24, 24}, {97, 97}, {7, 300}, {130, 65}};
  std::vector<AttentionSpan> spans;
  int64_t q_row = 0, k_row = 0;
  for (const auto& [q_len, k_len] : lens) {
    AttentionSpan span{.q_row = q_row, .q_len = q_len, .k_row = k_row, .k_len = k_len};
    if (causal) span.causal_offset = k_len - q_len;
    spans.push_back(span);
    q_row += q_len;
    k_row += k_len;
  }
  return spans;
}

class CpuAttention : public EachLevel {};

TEST_P(CpuAttention, RaggedCausalInEveryDtype) {
  const auto backend = open_level(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(to_string(dtype));
    Case(dtype, {}, ragged(true)).expect_exact(*backend);
  }
}

TEST_P(CpuAttention, RaggedNotCausalInEveryDtype) {
  const auto backend = open_level(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(to_string(dtype));
    Case(dtype, {}, ragged(false)).expect_exact(*backend);
  }
}

TEST_P(CpuAttention, EveryHeadDim) {
  const auto backend = open_level(GetParam());
  const std::vector<Shape> shapes = {{2, 2, 192, 64, 128}, {2, 2, 256, 64, 256}, {2, 2, 96, 32, 64},
                                     {2, 2, 128, 32, 96},  {2, 2, 32, 16, 16},   {1, 1, 384, 128, 256},
                                     {2, 2, 128, 0, 128},  {2, 2, 80, 0, 48}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape.qk_dim << " " << shape.rope << " " << shape.v_dim);
    for (DType dtype : {DType::kF32, DType::kBF16})
      Case(dtype, shape, causal_span(40, 150)).expect_exact(*backend);
  }
}

TEST_P(CpuAttention, GroupedKeyHeads) {
  const auto backend = open_level(GetParam());
  Case(DType::kBF16, {6, 2, 128, 0, 64}, ragged(true)).expect_exact(*backend);
  Case(DType::kF32, {6, 1, 96, 32, 64}, ragged(true)).expect_exact(*backend);
}

TEST_P(CpuAttention, AnyScale) {
  const auto backend = open_level(GetParam());
  for (double scale : {0.0, -0.3, 1.874 / std::sqrt(192.0), 1.5}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Case c(dtype, {}, ragged(true));
      c.scale = scale;
      SCOPED_TRACE(scale);
      c.expect_exact(*backend);
    }
  }
}

TEST_P(CpuAttention, MoreQueriesThanKeysLeaveEmptyRows) {
  const auto backend = open_level(GetParam());
  Case c(DType::kBF16, {}, causal_span(300, 150));
  c.expect_exact(*backend);
  for (int64_t row = 0; row < 150; ++row) {
    EXPECT_EQ(c.lse[static_cast<size_t>(row)], -kInf);
    EXPECT_EQ(c.out.get(row * c.shape.heads * c.shape.v_dim), 0.0f);
  }
}

TEST_P(CpuAttention, StridedViewsAndLseLayouts) {
  const auto backend = open_level(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Case c(dtype, {}, ragged(true));
    const Shape& s = c.shape;
    const int64_t nope = s.qk_dim - s.rope;
    const int64_t wide = nope + s.v_dim + 16;
    Array q = Array::random(dtype, c.q_rows * (s.heads * s.qk_dim + 32), 11);
    Array kv = Array::random(dtype, c.k_rows * s.heads * wide, 12);
    Array out(dtype, c.q_rows * s.heads * (s.v_dim + 8));
    std::vector<float> lse(static_cast<size_t>(c.q_rows * (s.heads + 2)), 7.0f);
    AttentionArgs a = c.args();
    a.q = ConstTensor(q.data(), dtype, {c.q_rows, s.heads, s.qk_dim}, {s.heads * s.qk_dim + 32, s.qk_dim, 1});
    a.k = ConstTensor(kv.data(), dtype, {c.k_rows, s.heads, nope}, {s.heads * wide, wide, 1});
    a.v = ConstTensor(static_cast<std::byte*>(kv.data()) + nope * size_bytes(dtype), dtype,
                      {c.k_rows, s.heads, s.v_dim}, {s.heads * wide, wide, 1});
    a.out =
        Tensor(out.data(), dtype, {c.q_rows, s.heads, s.v_dim}, {s.heads * (s.v_dim + 8), s.v_dim + 8, 1});
    a.lse = {lse.data(), 1, s.heads + 2, LseBase::kLog2};
    ASSERT_TRUE(backend->attention(a, {}).ok());
    const auto expected = verify::expect_attention(a, verify::all_heads(s.heads));
    const verify::Comparison comparison = verify::compare(expected, a.out, a.lse);
    EXPECT_TRUE(comparison.ok()) << comparison.failure;
    EXPECT_TRUE(std::isnan(out.get(s.v_dim))) << "padding between heads was written";
    EXPECT_EQ(lse[static_cast<size_t>(s.heads)], 7.0f) << "padding of the LSE was written";
  }
}

TEST_P(CpuAttention, Float32OutputOfHalfPrecisionInputs) {
  const auto backend = open_level(GetParam());
  Case c(DType::kBF16, {}, ragged(true));
  c.out = Array(DType::kF32, c.q_rows * c.shape.heads * c.shape.v_dim);
  c.expect_exact(*backend);
}

TEST_P(CpuAttention, NanInAKeyOrValueReachesExactlyTheRowsThatSeeIt) {
  const auto backend = open_level(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (bool in_value : {false, true}) {
      for (float poison : {kNan, kInf}) {
        Case c(dtype, {1, 1, 192, 64, 128}, causal_span(150, 150));
        constexpr int64_t kPoisoned = 77;
        if (in_value) {
          c.v.set(kPoisoned * c.shape.v_dim + 5, poison);
        } else {
          c.k.set(kPoisoned * 128 + 5, poison);
        }
        SCOPED_TRACE(testing::Message() << to_string(dtype) << (in_value ? " value " : " key ") << poison);
        ASSERT_TRUE(backend->attention(c.args(), {}).ok());
        for (int64_t row = 0; row < 150; ++row) {
          const float seen = c.out.get(row * c.shape.v_dim + 5);
          if (row < kPoisoned) {
            ASSERT_TRUE(std::isfinite(seen)) << "row " << row;
          } else if (std::isnan(poison)) {
            ASSERT_TRUE(std::isnan(seen)) << "row " << row;
          }
          if (row >= kPoisoned && in_value) {
            ASSERT_FALSE(std::isfinite(seen)) << "row " << row;
            ASSERT_TRUE(std::isfinite(c.out.get(row * c.shape.v_dim + 6))) << "row " << row;
          }
        }
      }
    }
  }
}

TEST_P(CpuAttention, NanInAQueryReachesItsRowAlone) {
  const auto backend = open_level(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Case c(dtype, {1, 1, 192, 64, 128}, causal_span(70, 150));
    c.q.set(33 * c.shape.qk_dim + 190, kNan);
    ASSERT_TRUE(backend->attention(c.args(), {}).ok());
    for (int64_t row = 0; row < 70; ++row) {
      EXPECT_EQ(std::isnan(c.out.get(row * c.shape.v_dim)), row == 33) << row;
      EXPECT_EQ(std::isnan(c.lse[static_cast<size_t>(row)]), row == 33) << row;
    }
  }
}

TEST_P(CpuAttention, FirstVisibleScoreNan) {
  const auto backend = open_level(GetParam());
  Case c(DType::kF32, {1, 1, 32, 0, 16}, causal_span(3, 3));
  c.k.set(0, kNan);
  ASSERT_TRUE(backend->attention(c.args(), {}).ok());
  for (int64_t row = 0; row < 3; ++row) EXPECT_TRUE(std::isnan(c.out.get(row * 16))) << row;
}

/// Runs `spans` of one request of `rows` queries as consecutive calls carrying the state.
void run_cut(const Backend& backend, Case& c, const std::vector<int64_t>& cuts, bool invariant) {
  const AttentionSpan whole = c.spans[0];
  const auto lse_count = static_cast<int64_t>(c.lse.size());
  Array out(DType::kF32, c.q_rows * c.shape.heads * c.shape.v_dim);
  Array max(DType::kF32, lse_count), sum(DType::kF32, lse_count);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    AttentionSpan span = whole;
    span.k_row = whole.k_row + cuts[i];
    span.k_len = cuts[i + 1] - cuts[i];
    span.causal_offset = whole.causal_offset - cuts[i];
    span.resume = i > 0;
    span.store_state = i + 2 < cuts.size();
    AttentionArgs a = c.args();
    a.spans = std::span(&span, 1);
    a.state = {static_cast<float*>(out.data()), static_cast<float*>(max.data()),
               static_cast<float*>(sum.data())};
    a.invariant = invariant;
    const Status status = backend.attention(a, {});
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(CpuAttention, CarriedStateIsExact) {
  const auto backend = open_level(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Case c(dtype, {}, causal_span(70, 500));
    run_cut(*backend, c, {0, 1, 64, 130, 430, 500}, false);
    const AttentionArgs a = c.args();
    const auto expected = verify::expect_attention(a, verify::all_heads(c.shape.heads));
    const verify::Comparison comparison = verify::compare(expected, a.out, a.lse);
    EXPECT_TRUE(comparison.ok()) << comparison.failure;
  }
}

TEST_P(CpuAttention, InvariantModeIsBitwiseIndependentOfCutsThreadsAndNeighbours) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Case whole(dtype, {}, causal_span(260, 700));
    AttentionArgs a = whole.args();
    a.invariant = true;
    ASSERT_TRUE(open_level(GetParam(), 1)->attention(a, {}).ok());

    Case cut(dtype, {}, causal_span(260, 700));
    run_cut(*open_level(GetParam(), 3), cut, {0, 64, 384, 448, 700}, true);
    EXPECT_EQ(whole.out.bytes(), cut.out.bytes());
    EXPECT_EQ(whole.lse, cut.lse);

    std::vector<AttentionSpan> many = causal_span(260, 700);
    many.push_back({.q_row = 260, .q_len = 5, .k_row = 0, .k_len = 90, .causal_offset = 85});
    Case among(dtype, {}, many);
    Array q = Array::random(dtype, 265 * 3 * 192, 9);
    for (int64_t i = 0; i < 260 * 3 * 192; ++i) q.set(i, whole.q.get(i));
    among.q = q;
    AttentionArgs b = among.args();
    b.invariant = true;
    ASSERT_TRUE(open_level(GetParam(), 4)->attention(b, {}).ok());
    EXPECT_TRUE(std::equal(whole.out.bytes().begin(), whole.out.bytes().end(), among.out.bytes().begin()));
  }
}

TEST_P(CpuAttention, NothingIsAllocatedAfterTheFirstCall) {
  if (!kAllocationsAreCounted) GTEST_SKIP() << "ThreadSanitizer brings its own operator new";
  const auto backend = open_level(GetParam());
  Case c(DType::kBF16, {}, ragged(true));
  const AttentionArgs a = c.args();
  ASSERT_TRUE(backend->attention(a, {}).ok());
  const int64_t before = allocation_count();
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(backend->attention(a, {}).ok());
  EXPECT_EQ(allocation_count() - before, 0);
}

TEST_P(CpuAttention, NothingToDo) {
  const auto backend = open_level(GetParam());
  AttentionArgs a;
  a.q = ConstTensor(nullptr, DType::kBF16, {0, 4, 192});
  a.k = ConstTensor(nullptr, DType::kBF16, {0, 4, 192});
  a.v = ConstTensor(nullptr, DType::kBF16, {0, 4, 128});
  a.out = Tensor(nullptr, DType::kBF16, {0, 4, 128});
  EXPECT_TRUE(backend->attention(a, {}).ok());
}

MLAPREFILL_FOR_EACH_LEVEL(CpuAttention);

}  // namespace
}  // namespace mlaprefill::cpu
