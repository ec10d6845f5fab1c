// Any metadata either gives a plan that holds its promises or a refusal with a message.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "mlaprefill/plan.h"

namespace mlaprefill {
namespace {

/// Takes values off the input; zeros once it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  template <typename T>
  T take() {
    T value{};
    const size_t count = std::min(sizeof value, size_);
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count;
    size_ -= count;
    return value;
  }

  /// A small length mostly, any 32 bits sometimes.
  int32_t take_length() {
    const uint8_t kind = take<uint8_t>();
    return kind < 240 ? kind : take<int32_t>();
  }

  bool empty() const { return size_ == 0; }

 private:
  const uint8_t* data_;
  size_t size_;
};

void require(bool promise) {
  if (!promise) std::abort();
}

void check(const Plan& plan) {
  std::vector<int64_t> next(plan.query_lens.size(), 0);
  int64_t span = 0;
  int64_t tile = 0;
  for (const Pass& pass : plan.passes) {
    require(pass.span_begin == span && pass.span_end >= span);
    require(pass.tile_begin == tile && pass.tile_end >= tile);
    if (pass.kind == PassKind::kJoint) require(pass.rows <= plan.options.workspace_tokens);
    int64_t row = 0;
    for (; span < pass.span_end; ++span) {
      const Span& piece = plan.spans[static_cast<size_t>(span)];
      int64_t& key = next[static_cast<size_t>(piece.request)];
      require(piece.key_begin == key && piece.key_end >= key);
      require(piece.row_begin >= row &&
              piece.row_begin + piece.length() <= std::max(pass.rows, piece.row_begin));
      row = piece.row_begin + piece.length();
      key = piece.key_end;
    }
    for (; tile < pass.tile_end; ++tile) {
      const Tile& work = plan.tiles[static_cast<size_t>(tile)];
      require(work.span >= pass.span_begin && work.span < pass.span_end);
      require(work.query_rows > 0 && work.key_tiles >= 0);
    }
  }
  for (size_t r = 0; r < next.size(); ++r) {
    const bool skipped = plan.query_lens[r] == 0 && next[r] == 0;
    require(skipped || next[r] == int64_t{plan.context_lens[r]} + plan.query_lens[r]);
  }
  require(plan.workspace.total_bytes >= 0 && plan.cost.visible_pairs >= 0);
}

void fuzz(Input input) {
  const MlaDims dims{2, 64, 32, 16, 32, 0.125};
  PlanOptions options;
  options.mode = static_cast<PlanMode>(input.take<uint8_t>() % 5);
  const uint8_t flags = input.take<uint8_t>();
  options.strict = (flags & 1) != 0;
  options.invariant = (flags & 2) != 0;
  options.workspace_tokens = (flags & 4) != 0 ? input.take<int64_t>() : input.take<uint16_t>();
  DeviceProperties device;
  device.query_tile_tokens = (flags & 8) != 0 ? input.take_length() : 0;
  device.key_tile_tokens = (flags & 16) != 0 ? input.take_length() : 64;
  device.row_alignment_rows = (flags & 32) != 0 ? input.take_length() : 1;
  if ((flags & 64) != 0) {
    options.bounds = PlanBounds{.max_requests = input.take_length(),
                                .max_query_rows = input.take_length(),
                                .max_passes = input.take<uint8_t>(),
                                .block_size = input.take_length()};
  }

  RaggedBatch batch;
  batch.block_size = input.take_length();
  batch.num_cache_blocks = input.take_length();
  const bool has_table = (flags & 128) != 0;
  const int64_t cols = has_table ? input.take<uint8_t>() % 16 : 0;

  std::vector<int32_t> query_start_loc{0};
  std::vector<int32_t> context_lens;
  std::vector<int32_t> ids;
  while (!input.empty() && context_lens.size() < 64) {
    const uint32_t end =
        static_cast<uint32_t>(query_start_loc.back()) + static_cast<uint32_t>(input.take_length());
    query_start_loc.push_back(static_cast<int32_t>(end));
    context_lens.push_back(input.take_length());
    for (int64_t i = 0; i < cols; ++i) ids.push_back(input.take_length());
  }
  batch.query_start_loc = query_start_loc;
  batch.context_lens = context_lens;
  if (has_table) batch.block_table = {ids.data(), static_cast<int64_t>(context_lens.size()), cols, cols};

  // Plans of very many passes or tiles are allowed, but too slow to try by the thousand.
  int64_t tokens = std::max(query_start_loc.back(), 0);
  for (int32_t length : context_lens) tokens += std::max(length, 0);
  options.workspace_tokens = std::max(options.workspace_tokens, tokens / 64);
  if (device.query_tile_tokens > 0) {
    const int64_t least_tile = std::min<int64_t>(tokens / 64, 1 << 16);
    device.query_tile_tokens = std::max(device.query_tile_tokens, static_cast<int32_t>(least_tile));
  }

  const Result<Plan> plan = make_plan(dims, batch, options, device);
  if (!plan.ok()) {
    require(plan.status().message().find(": ") != std::string_view::npos);
    require(plan.status().code() != StatusCode::kInternal);
    return;
  }
  check(plan.value());
  require(!to_text(plan.value()).empty() && !to_json(plan.value()).empty());
  require(fingerprint(plan.value()) == fingerprint(make_plan(dims, batch, options, device).value()));
}

}  // namespace
}  // namespace mlaprefill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  mlaprefill::fuzz(mlaprefill::Input(data, size));
  return 0;
}
