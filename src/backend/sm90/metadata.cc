#include "backend/sm90/metadata.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/sm90/kv_splits.h"
#include "backend/sm90/small_metadata.h"
#include "core/checked.h"
#include "plan/kv_splits.h"

namespace mlaprefill::sm90 {
namespace {

constexpr int64_t kElementBytes = 2;

RowSplit split_for(int64_t rows) {
  if (rows > 2 * kRowsPerWarpgroup) return RowSplit::kFourBlocksOneHead;
  return rows > kRowsPerWarpgroup ? RowSplit::kTwoBlocksTwoHeads : RowSplit::kOneBlockFourHeads;
}

/// The entry of query rows [begin, begin + rows) of a span.
AttentionEntry make_entry(const AttentionSpan& span, int64_t begin, int64_t rows) {
  constexpr int64_t kLimit = AttentionEntry::kNotCausal;
  AttentionEntry entry;
  entry.q_row = static_cast<int32_t>(span.q_row + begin);
  entry.q_rows = static_cast<int32_t>(rows);
  entry.kv_row = static_cast<int32_t>(span.k_row);
  entry.kv_len = static_cast<int32_t>(span.k_len);
  entry.causal_offset = static_cast<int32_t>(std::clamp(span.causal_offset + begin, -kLimit, kLimit));
  entry.flags = static_cast<int32_t>(split_for(rows)) | (span.resume ? AttentionEntry::kResume : 0) |
                (span.store_state ? AttentionEntry::kStoreState : 0);
  return entry;
}

AttentionSpan attention_span(const Plan& plan, const Span& span) {
  const auto r = static_cast<size_t>(span.request);
  return {.q_row = plan.query_start_loc[r],
          .q_len = plan.query_lens[r],
          .k_row = span.row_begin,
          .k_len = span.length(),
          .causal_offset = plan.context_lens[r] - span.key_begin,
          .resume = !span.first,
          .store_state = !span.last};
}

void write_gather_spans(const Plan& plan, GatherSpan* out) {
  for (const Span& span : plan.spans) {
    const auto r = static_cast<size_t>(span.request);
    *out++ = {.key_begin = span.key_begin,
              .block_begin = plan.block_begin.empty() ? 0 : plan.block_begin[r],
              .context_len = plan.context_lens[r],
              .first_new_row = plan.query_start_loc[r],
              .row_begin = static_cast<int32_t>(span.row_begin),
              .rows = static_cast<int32_t>(span.length())};
  }
}

}  // namespace

int64_t write_metadata(const Plan& plan, std::byte* out) {
  const auto passes = static_cast<int64_t>(plan.passes.size());
  const int64_t max_kv_splits = plan.workspace.max_kv_splits;
  const int64_t entries_offset = entries_offset_bytes(passes, max_kv_splits);
  auto* entries = reinterpret_cast<AttentionEntry*>(out + entries_offset);
  std::memset(out + pass_record_offset_bytes(passes), 0, static_cast<size_t>(arrivals_bytes(max_kv_splits)));

  const HeadShape shape{plan.dims.num_heads, plan.dims.expanded_head_dim() * kElementBytes};
  int32_t entry_count = 0;
  for (int64_t p = 0; p < passes; ++p) {
    const Pass& pass = plan.passes[static_cast<size_t>(p)];
    std::vector<AttentionEntry> pass_entries;
    for (int64_t t = pass.tile_begin; t < pass.tile_end; ++t) {
      const Tile& tile = plan.tiles[static_cast<size_t>(t)];
      pass_entries.push_back(make_entry(attention_span(plan, plan.spans[static_cast<size_t>(tile.span)]),
                                        tile.query_begin, tile.query_rows));
    }
    const Schedule schedule = make_schedule(std::move(pass_entries), shape, max_kv_splits);
    PassRecord record;
    record.span_begin = static_cast<int32_t>(pass.span_begin);
    record.span_count = static_cast<int32_t>(pass.span_end - pass.span_begin);
    record.sections = schedule.sections;
    for (AttentionSection& section : record.sections) section.entry_begin += entry_count;
    std::copy(schedule.entries.begin(), schedule.entries.end(), entries + entry_count);
    entry_count += static_cast<int32_t>(schedule.entries.size());
    std::memcpy(out + pass_record_offset_bytes(p), &record, sizeof(record));
  }

  MetadataHeader header;
  header.spans_offset_bytes = entries_offset + entry_count * static_cast<int64_t>(sizeof(AttentionEntry));
  header.blocks_offset_bytes =
      header.spans_offset_bytes + static_cast<int64_t>(plan.spans.size() * sizeof(GatherSpan));
  header.block_size = plan.block_size;
  std::memcpy(out, &header, sizeof(header));
  write_gather_spans(plan, reinterpret_cast<GatherSpan*>(out + header.spans_offset_bytes));
  if (!plan.blocks.empty()) {
    std::memcpy(out + header.blocks_offset_bytes, plan.blocks.data(), plan.blocks.size() * sizeof(int32_t));
  }
  return header.blocks_offset_bytes + static_cast<int64_t>(plan.blocks.size() * sizeof(int32_t));
}

CallLayout lay_out_call(const AttentionArgs& args, int64_t most_kv_splits) {
  MetadataCounts counts{.passes = 1};
  bool splits = false;
  for (const AttentionSpan& span : args.spans) {
    counts.tiles = counts.tiles + ceil_div(span.q_len, kMaxEntryRows);
    const bool sees_all = span.causal_offset >= span.k_len;
    const int64_t visible = sees_all ? span.k_len : std::min(span.k_len, span.causal_offset + span.q_len);
    splits |= span.q_len > 0 && may_split_keys(ceil_div(visible, kKeyTileTokens));
  }
  if (splits && !args.invariant) counts.kv_splits = most_kv_splits;
  const int64_t partial_bytes =
      kMaxEntryRows * partial_row_words(args.v.shape[2]) * static_cast<int64_t>(sizeof(float));
  CallLayout layout{.metadata_bytes = round_up(metadata_size_bytes(counts).value(), 256),
                    .max_kv_splits = counts.kv_splits};
  layout.total_bytes = layout.metadata_bytes + layout.max_kv_splits * partial_bytes;
  return layout;
}

Schedule schedule_call(const AttentionArgs& args, int64_t max_kv_splits) {
  std::vector<AttentionEntry> entries;
  for (const AttentionSpan& span : args.spans) {
    for (int64_t begin = 0; begin < span.q_len; begin += kMaxEntryRows) {
      entries.push_back(make_entry(span, begin, std::min<int64_t>(kMaxEntryRows, span.q_len - begin)));
    }
  }
  std::stable_sort(entries.begin(), entries.end(), sees_more);
  const HeadShape shape{static_cast<int32_t>(args.q.shape[1]),
                        (args.k.shape[2] + args.v.shape[2]) * kElementBytes};
  Schedule split = make_schedule(entries, shape, max_kv_splits);
  if (split.kv_splits == 0 || call_metadata_bytes(split) <= kSmallMetadataBytes) return split;
  Schedule whole = make_schedule(std::move(entries), shape, 0);
  return call_metadata_bytes(whole) <= kSmallMetadataBytes ? whole : split;
}

void write_call_metadata(const Schedule& schedule, std::byte* out) {
  const MetadataHeader header;
  std::memcpy(out, &header, sizeof(header));
  PassRecord record;
  record.sections = schedule.sections;
  std::memcpy(out + pass_record_offset_bytes(0), &record, sizeof(record));
  std::memset(out + pass_record_offset_bytes(1), 0, static_cast<size_t>(arrivals_bytes(schedule.kv_splits)));
  std::copy(schedule.entries.begin(), schedule.entries.end(),
            reinterpret_cast<AttentionEntry*>(out + entries_offset_bytes(1, schedule.kv_splits)));
}

}  // namespace mlaprefill::sm90
