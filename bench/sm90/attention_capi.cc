// One build of the attention kernel behind a C interface, for attention_bench.py.
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "gpu/attention/attention_runner.h"

using namespace mlaprefill;
using namespace mlaprefill::sm90;

#define EXPORT extern "C" __attribute__((visibility("default")))

/// bf16, dims (192, 128), contiguous: q [q rows, heads, 192]; K_nope and V of a head side by side in
/// `expanded` [k rows, heads, 256]; out [q rows, heads, 128]; lse [heads, q rows]. rope: [k rows, 64] with a
/// row stride. Null on failure, which stderr explains.
EXPORT void* attention_bench_create(int64_t heads, int64_t q_rows, int64_t k_rows, void* q, void* expanded,
                                    void* rope, int64_t rope_row_stride, void* out, float* lse, double scale,
                                    const mlaprefill_attention_span* spans, int64_t count) {
  constexpr int64_t kNope = 128, kRope = 64, kValue = 128, kExpanded = kNope + kValue;
  std::vector<AttentionSpan> list;
  for (const mlaprefill_attention_span& span : std::span(spans, static_cast<size_t>(count))) {
    list.push_back(c_api::converted(span));
  }
  const auto expanded_part = [&](int64_t begin, int64_t columns) {
    return ConstTensor(static_cast<uint16_t*>(expanded) + begin, DType::kBF16, {k_rows, heads, columns},
                       {heads * kExpanded, kExpanded, 1});
  };
  AttentionArgs args;
  args.q = {q, DType::kBF16, {q_rows, heads, kNope + kRope}};
  args.k = expanded_part(0, kNope);
  args.k_rope = {rope, DType::kBF16, {k_rows, kRope}, {rope_row_stride, 1}};
  args.v = expanded_part(kNope, kValue);
  args.spans = list;
  args.softmax_scale = scale;
  args.out = {out, DType::kBF16, {q_rows, heads, kValue}};
  args.lse = {lse, q_rows};
  auto runner = AttentionRunner::create(args);
  if (runner.ok()) return std::move(runner).value().release();
  std::fprintf(stderr, "%s\n", runner.status().message().c_str());
  return nullptr;
}

EXPORT int32_t attention_bench_launch(const void* runner, void* stream) {
  return static_cast<const AttentionRunner*>(runner)->launch(static_cast<cudaStream_t>(stream));
}

EXPORT void attention_bench_destroy(void* runner) { delete static_cast<AttentionRunner*>(runner); }
