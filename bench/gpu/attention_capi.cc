// The attention kernel behind a C interface, for bench/gpu/attention_bench.py.
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/attention/attention_runner.h"

using namespace mlaprefill;
using namespace mlaprefill::sm90;

extern "C" {

/// bf16, dims (192, 128): K_nope and V of a head side by side in `expanded` [k rows, heads, 256].
/// spans: 5 numbers each: q_row, q_len, k_row, k_len, causal_offset. Null on failure.
void* attention_bench_create(int32_t heads, void* q, void* expanded, void* rope, int64_t rope_row_stride,
                             void* out, float* lse, int64_t q_rows, float scale, const int64_t* spans,
                             int64_t count) {
  AttentionCall call;
  call.num_heads = heads;
  call.kv_heads = heads;
  call.q = {q, heads * int64_t{192}, 192};
  call.k_nope = {expanded, heads * int64_t{256}, 256};
  call.v = {static_cast<uint16_t*>(expanded) + 128, heads * int64_t{256}, 256};
  call.k_rope = {rope, rope_row_stride, 0};
  call.out = {out, heads * int64_t{128}, 128};
  call.lse = lse;
  call.lse_head_stride = q_rows;
  call.scale = scale;
  std::vector<AttentionSpan> list(static_cast<size_t>(count));
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].q_row = spans[5 * i];
    list[i].q_len = spans[5 * i + 1];
    list[i].k_row = spans[5 * i + 2];
    list[i].k_len = spans[5 * i + 3];
    list[i].causal_offset = spans[5 * i + 4];
  }
  std::string error;
  auto* runner = new AttentionRunner(call, list, error);
  if (error.empty()) return runner;
  delete runner;
  return nullptr;
}

int32_t attention_bench_launch(void* runner, void* stream) {
  return static_cast<AttentionRunner*>(runner)->launch(static_cast<cudaStream_t>(stream));
}

void attention_bench_destroy(void* runner) { delete static_cast<AttentionRunner*>(runner); }

}  // extern "C"
