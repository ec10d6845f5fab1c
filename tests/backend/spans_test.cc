#include "backend/spans.h"

#include <gtest/gtest.h>

#include <vector>

namespace mlaprefill {
namespace {

std::string message(std::vector<int32_t> cu_q, std::vector<int32_t> cu_k, int64_t q_rows, int64_t k_rows) {
  return make_attention_spans(cu_q, cu_k, true, q_rows, k_rows).status().message();
}

TEST(AttentionSpans, AreBottomRightCausal) {
  const std::vector<int32_t> cu_q{0, 3, 3, 8};
  const std::vector<int32_t> cu_k{0, 128, 130, 132};
  const auto spans = make_attention_spans(cu_q, cu_k, true, 8, 132);
  ASSERT_TRUE(spans.ok()) << spans.status().message();
  ASSERT_EQ(spans.value().size(), 3u);
  EXPECT_EQ(spans.value()[0].causal_offset, 125);
  EXPECT_EQ(spans.value()[1].q_len, 0);
  EXPECT_EQ(spans.value()[2].k_row, 130);
  EXPECT_EQ(spans.value()[2].causal_offset, -3);
  EXPECT_EQ(make_attention_spans(cu_q, cu_k, false, 8, 132).value()[0].causal_offset,
            AttentionSpan::kNotCausal);
}

TEST(AttentionSpans, LengthsBeyondTheTensorsAreRefused) {
  EXPECT_EQ(message({0, 4}, {0, 20}, 4, 17), "cu_seqlens_k[1]: must be <= the tensor's 17 rows, got 20");
  EXPECT_EQ(message({0, 5}, {0, 17}, 4, 17), "cu_seqlens_q[1]: must be <= the tensor's 4 rows, got 5");
  EXPECT_EQ(message({1, 4}, {0, 17}, 4, 17), "cu_seqlens_q[0]: must be 0, got 1");
  EXPECT_EQ(message({0, 3, 2}, {0, 1, 2}, 4, 17), "cu_seqlens_q[2]: must be >= cu_seqlens_q[1] = 3, got 2");
  EXPECT_EQ(message({0, 3}, {0, 9, 4}, 4, 17), "cu_seqlens_k[2]: must be >= cu_seqlens_k[1] = 9, got 4");
  EXPECT_EQ(message({0, 1, 2}, {0, 1}, 4, 17),
            "cu_seqlens_k: must have as many entries as cu_seqlens_q = 3, got 2");
  EXPECT_EQ(message({}, {0}, 4, 17), "cu_seqlens_q: must have at least one entry, got 0");
}

TEST(AttentionSpans, ABatchOfZeroIsEmpty) {
  const std::vector<int32_t> none{0};
  const auto spans = make_attention_spans(none, none, true, 0, 0);
  ASSERT_TRUE(spans.ok());
  EXPECT_TRUE(spans.value().empty());
}

TEST(AttentionSpans, SharedQueryRowsAreRefusedInAnyOrder) {
  AttentionSpan first{.q_row = 4, .q_len = 4};
  AttentionSpan second{.q_row = 0, .q_len = 4};
  const std::vector<AttentionSpan> disjoint{first, second};
  EXPECT_TRUE(check_spans(disjoint, 8, 0).ok());
  second.q_len = 5;
  const std::vector<AttentionSpan> shared{first, second};
  EXPECT_EQ(check_spans(shared, 8, 0).message(), "spans: must not share query rows, got [0, 5) and [4, 8)");
}

TEST(AttentionSpans, RowsOutsideTheTensorsAreRefused) {
  std::vector<AttentionSpan> spans{{.q_row = 0, .q_len = 2, .k_row = 3, .k_len = 4}};
  EXPECT_EQ(check_spans(spans, 2, 6).message(), "spans[0]: k rows must end at or before row 6, got 3 + 4");
  spans[0].k_row = -1;
  EXPECT_EQ(check_spans(spans, 2, 6).message(), "spans[0].k_row: must be >= 0, got -1");
  spans[0] = {.q_row = INT64_MAX, .q_len = 2};
  EXPECT_EQ(check_spans(spans, 2, 6).code(), StatusCode::kOutOfRange);
  spans[0] = {.q_row = 0, .q_len = 2, .causal_offset = INT64_MAX};
  EXPECT_EQ(check_spans(spans, 2, 6).code(), StatusCode::kLimitExceeded);
}

}  // namespace
}  // namespace mlaprefill
