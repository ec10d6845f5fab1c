// Every refusal of an attention call names the argument and its value, and nothing is written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "support/backend_test.h"

namespace mlaprefill {
namespace {

class AttentionRefusals : public BackendTest {
 protected:
  void SetUp() override {
    if (!reads_host_memory()) GTEST_SKIP() << "needs host memory";
    args_.q = ConstTensor(input_.data(), DType::kF32, {6, 4, 48});
    args_.k = ConstTensor(input_.data(), DType::kF32, {8, 2, 32});
    args_.k_rope = ConstTensor(input_.data(), DType::kF32, {8, 16});
    args_.v = ConstTensor(input_.data(), DType::kF32, {8, 2, 32});
    args_.out = Tensor(out_.data(), DType::kF32, {6, 4, 32});
    args_.lse = {lse_.data(), 6, 1};
    args_.softmax_scale = 0.1;
    args_.spans = spans_;
  }

  void expect_refusal(const std::function<void(AttentionArgs&)>& spoil, StatusCode code,
                      const std::string& message) {
    AttentionArgs args = args_;
    spoil(args);
    const Status status = backend().attention(args, {});
    EXPECT_EQ(status.message(), message);
    EXPECT_EQ(status.code(), code) << message;
    for (const float value : out_) ASSERT_TRUE(std::isnan(value)) << message;
    for (const float value : lse_) ASSERT_TRUE(std::isnan(value)) << message;
  }

  std::vector<float> input_ = std::vector<float>(6 * 4 * 48);
  std::vector<float> out_ = std::vector<float>(6 * 4 * 32, NAN), lse_ = std::vector<float>(24, NAN);
  std::vector<AttentionSpan> spans_{{.q_len = 6, .k_len = 8}};
  AttentionArgs args_;
};

constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
constexpr StatusCode kUnsupported = StatusCode::kUnsupported;
constexpr StatusCode kLimit = StatusCode::kLimitExceeded;

TEST_P(AttentionRefusals, TheUnspoiledCallIsAccepted) {
  EXPECT_EQ(backend().attention(args_, {}).message(), "");
}

TEST_P(AttentionRefusals, Shapes) {
  expect_refusal([](AttentionArgs& a) { a.q.rank = 2; }, kInvalid, "q: must have rank 3, got 2");
  expect_refusal([](AttentionArgs& a) { a.q.shape[0] = -1; }, kInvalid,
                 "q: must have shape [any, any, any], got [-1, 4, 48]");
  expect_refusal([](AttentionArgs& a) { a.q.shape[1] = 257; }, kLimit,
                 "q: heads must lie in 1..256, got 257");
  expect_refusal([](AttentionArgs& a) { a.k.shape[1] = a.v.shape[1] = 3; }, kInvalid,
                 "k: heads must divide q's 4 heads, got 3");
  expect_refusal([](AttentionArgs& a) { a.q.shape[2] = 40; }, kUnsupported,
                 "q: head dim must be a positive multiple of 16, got 40");
  expect_refusal([](AttentionArgs& a) { a.q.shape[2] = 400; }, kLimit, "q: head dim must be <= 384, got 400");
  expect_refusal(
      [](AttentionArgs& a) {
        a.k_rope.shape[1] = 32;
        a.k_rope.stride[0] = 32;
      },
      kInvalid, "k: head dim plus k_rope's 32 must be q's 48, got 32");
  expect_refusal([](AttentionArgs& a) { a.k_rope.shape[0] = 7; }, kInvalid,
                 "k_rope: must have shape [8, any], got [7, 16]");
  expect_refusal([](AttentionArgs& a) { a.v.shape[0] = 7; }, kInvalid,
                 "v: must have shape [8, 2, any], got [7, 2, 32]");
  expect_refusal([](AttentionArgs& a) { a.v.shape[2] = 272; }, kLimit, "v: head dim must be <= 256, got 272");
  expect_refusal([](AttentionArgs& a) { a.out.shape[2] = 48; }, kInvalid,
                 "out: must have shape [6, 4, 32], got [6, 4, 48]");
}

TEST_P(AttentionRefusals, StridesAndMemory) {
  expect_refusal([](AttentionArgs& a) { a.v.stride[2] = 2; }, kUnsupported,
                 "v: last stride must be 1, got 2");
  expect_refusal([](AttentionArgs& a) { a.k.stride[0] = -64; }, kInvalid,
                 "k: strides must be >= 0, got stride[0] = -64");
  expect_refusal([](AttentionArgs& a) { a.q.stride[0] = int64_t{1} << 60; }, kLimit,
                 "q: must span at most 2305843009213693952 bytes, got shape [6, 4, 48] with strides "
                 "[1152921504606846976, 48, 1]");
  expect_refusal([](AttentionArgs& a) { a.out.stride[1] = 16; }, kInvalid,
                 "out: elements must not share addresses, got shape [6, 4, 32] with strides [128, 16, 1]");
  expect_refusal([](AttentionArgs& a) { a.out.stride[0] = 0; }, kInvalid,
                 "out: elements must not share addresses, got shape [6, 4, 32] with strides [0, 32, 1]");
  expect_refusal([](AttentionArgs& a) { a.lse.head_stride = 5; }, kInvalid,
                 "lse: elements must not share addresses, got shape [4, 6, 1] with strides [5, 1, 1]");
  expect_refusal([](AttentionArgs& a) { a.k.data = nullptr; }, kInvalid,
                 "k: data must not be null, got null for shape [8, 2, 32]");
  AttentionArgs args = args_;
  args.q.data = reinterpret_cast<const char*>(input_.data()) + 2;
  const std::string message = backend().attention(args, {}).message();
  EXPECT_EQ(message.find("q: data must be aligned to 4 bytes, got address 0x"), 0u) << message;
}

TEST_P(AttentionRefusals, Dtypes) {
  expect_refusal([](AttentionArgs& a) { a.q.dtype = DType::kI32; }, kUnsupported,
                 "q: dtype must be bf16, f16 or f32, got i32");
  expect_refusal([](AttentionArgs& a) { a.k.dtype = DType::kBF16; }, kUnsupported,
                 "k: dtype must be that of q (f32), got bf16");
  expect_refusal([](AttentionArgs& a) { a.v.dtype = DType::kF16; }, kUnsupported,
                 "v: dtype must be that of q (f32), got f16");
  expect_refusal([](AttentionArgs& a) { a.k_rope.dtype = DType::kF8E4M3; }, kUnsupported,
                 "k_rope: dtype must be that of q (f32), got f8_e4m3");
  expect_refusal([](AttentionArgs& a) { a.out.dtype = DType::kF16; }, kUnsupported,
                 "out: dtype must be that of q (f32) or f32, got f16");
}

TEST_P(AttentionRefusals, ScaleSpansAndState) {
  expect_refusal([](AttentionArgs& a) { a.softmax_scale = NAN; }, kInvalid,
                 "softmax_scale: must be finite, got nan");
  const auto with_span = [](const AttentionSpan& span) {
    static std::vector<AttentionSpan> spans;
    return [span](AttentionArgs& a) {
      spans.assign(1, span);
      a.spans = spans;
    };
  };
  expect_refusal(with_span({.q_row = 4, .q_len = 3}), StatusCode::kOutOfRange,
                 "spans[0]: q rows must end at or before row 6, got 4 + 3");
  expect_refusal(with_span({.q_len = 1, .k_row = 1, .k_len = 8}), StatusCode::kOutOfRange,
                 "spans[0]: k rows must end at or before row 8, got 1 + 8");
  expect_refusal(with_span({.q_len = 1, .k_len = 1, .resume = true}), kInvalid,
                 "state: must be given because spans[0] resumes, got null");
  expect_refusal(with_span({.q_len = 1, .k_len = 1, .store_state = true}), kInvalid,
                 "state: must be given because spans[0] stores it, got null");
}

MLAPREFILL_FOR_EVERY_BACKEND(AttentionRefusals);

}  // namespace
}  // namespace mlaprefill
