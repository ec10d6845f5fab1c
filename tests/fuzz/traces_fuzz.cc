// Any bytes as a trace, in every format: an error or a trace whose parts fit together, within bounded memory.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/traces/trace.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void check_trace(const mlaprefill::Trace& trace, const mlaprefill::TraceOptions& options) {
  double last = 0.0;
  for (const mlaprefill::TraceRequest& request : trace.requests) {
    check(request.input_tokens >= 1 && request.input_tokens <= options.max_input_tokens);
    check(request.output_tokens >= 0);
    check(request.arrival_s >= last);
    last = request.arrival_s;
    check(0 <= request.blocks_begin && request.blocks_begin <= request.blocks_end);
    check(request.blocks_end <= static_cast<int64_t>(trace.blocks.size()));
  }
  for (const int64_t block : trace.blocks) check(0 <= block && block < trace.num_distinct_blocks);
  const mlaprefill::TraceCounts& counts = trace.counts;
  check(counts.read == static_cast<int64_t>(trace.requests.size()) + counts.dropped_over_limit +
                           counts.dropped_empty_input + counts.cut);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  mlaprefill::TraceOptions options;
  options.format = static_cast<mlaprefill::TraceFormat>(data[0] % 5);
  options.clamp_to_limit = (data[0] & 0x10) != 0;
  options.block_tokens = (data[0] & 0x20) != 0 ? 16 : 0;
  options.max_input_tokens = 1 << 20;
  options.max_blocks = 1 << 16;
  options.max_requests = (data[0] & 0x40) != 0 ? 3 : 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto trace = mlaprefill::parse_trace(text, "fuzz", options);
  if (trace.ok()) check_trace(trace.value(), options);
  return 0;
}
