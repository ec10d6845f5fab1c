#include "backend/sm90/metadata.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "backend/sm90/kv_splits.h"
#include "backend/sm90/small_metadata.h"
#include "core/checked.h"
#include "plan/kv_splits.h"

namespace mlaprefill::sm90 {
namespace {

constexpr int64_t kElementBytes = 2;
/// Keys and values of the heads in flight together should stay in L2, which other data shares.
constexpr int64_t kResidentBytes = int64_t{24} << 20;
/// With fewer items it matters more that the cheapest come last.
constexpr int64_t kItemsWorthGrouping = 1024;
/// What an item costs besides its keys, in keys.
constexpr int64_t kItemCostKeys = 256;

struct HeadShape {
  int32_t num_heads = 0;
  int64_t kv_row_bytes = 0;  ///< key and value of one token for one head
};

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

/// The distinct runs of key rows that entries attend to.
struct KeyRuns {
  int64_t count = 0;
  int64_t keys = 0;
};

KeyRuns distinct_runs(std::span<const AttentionEntry> entries) {
  std::vector<std::pair<int32_t, int32_t>> runs;
  for (const AttentionEntry& entry : entries) runs.emplace_back(entry.kv_row, entry.kv_len);
  std::sort(runs.begin(), runs.end());
  runs.erase(std::unique(runs.begin(), runs.end()), runs.end());
  KeyRuns distinct{.count = static_cast<int64_t>(runs.size())};
  for (const auto& run : runs) distinct.keys += run.second;
  return distinct;
}

/// Brings entries that share keys together, in the order of their costliest ones.
void group_by_keys(std::span<AttentionEntry> entries) {
  std::map<std::pair<int32_t, int32_t>, size_t> order;
  for (const AttentionEntry& entry : entries) order.try_emplace({entry.kv_row, entry.kv_len}, order.size());
  std::stable_sort(entries.begin(), entries.end(), [&](const AttentionEntry& a, const AttentionEntry& b) {
    return order.at({a.kv_row, a.kv_len}) < order.at({b.kv_row, b.kv_len});
  });
}

/// Items of an entry that give all clusters work, together with those of the other entries, for as long as
/// the costliest item takes: with fewer in a group, some clusters would idle over the last one.
int64_t balanced_group(std::span<const AttentionEntry> entries) {
  int64_t total = 0;
  int64_t most = 0;
  for (const AttentionEntry& entry : entries) {
    const int64_t cost = visible_keys(entry) + kItemCostKeys;
    total += cost;
    most = std::max(most, cost);
  }
  return ceil_div(kClusters * most, total);
}

/// Whether no entry sees more than twice the keys of another: then their order does not matter for balance.
bool see_similar_keys(std::span<const AttentionEntry> entries) {
  const auto [least, most] = std::minmax_element(
      entries.begin(), entries.end(),
      [](const AttentionEntry& a, const AttentionEntry& b) { return visible_keys(a) < visible_keys(b); });
  return 2 * visible_keys(*least) >= visible_keys(*most);
}

/// Items of one entry, of `items`, that run before the next entry's: as many as L2 can hold the keys of,
/// `resident`, but at least `balanced`. Within those limits groups are as full as can be: a last group of few
/// would keep few clusters busy with its costliest entries.
int64_t group_size(int64_t items, int64_t resident, int64_t balanced) {
  if (items <= std::max(resident, balanced)) return items;
  const bool fits = resident >= balanced;
  const int64_t smallest = std::max(balanced, (resident + 1) / 2);
  const int64_t largest = fits ? resident : std::min(items, 2 * balanced - 1);
  const auto missing = [items](int64_t size) { return ceil_div(items, size) * size - items; };
  int64_t best = smallest;
  for (int64_t size = smallest + 1; size <= largest; ++size) {
    if (missing(size) < missing(best) || (fits && missing(size) == missing(best))) best = size;
  }
  return best;
}

/// Makes the section of entries of one row split, costliest first. Where there is much to do, entries that
/// share keys run side by side if L2 cannot hold even one head's, and no group is larger than L2 holds unless
/// what they see differs. Where keys are split there is little to do, and the order of cost alone counts.
AttentionSection make_section(std::span<AttentionEntry> entries, int32_t entry_begin,
                              const HeadShape& shape) {
  const int32_t heads = heads_per_item(row_split_of(entries[0].flags));
  AttentionSection section;
  section.entry_begin = entry_begin;
  section.entry_count = static_cast<int32_t>(entries.size());
  section.items_per_entry = items_per_entry(entries[0], shape.num_heads);
  section.group_items = section.items_per_entry;
  if (std::any_of(entries.begin(), entries.end(), is_split)) return section;

  const KeyRuns runs = distinct_runs(entries);
  const int64_t item_bytes = std::max<int64_t>(1, runs.keys * shape.kv_row_bytes * heads);
  const bool many = int64_t{section.entry_count} * section.items_per_entry >= kItemsWorthGrouping;
  const bool stay_resident = many && runs.count < section.entry_count && see_similar_keys(entries);
  if (many && item_bytes > kResidentBytes) group_by_keys(entries);
  section.group_items = static_cast<int32_t>(group_size(section.items_per_entry, kResidentBytes / item_bytes,
                                                        stay_resident ? 1 : balanced_group(entries)));
  return section;
}

/// Turns entries, costliest first, into at most one section for each row split, in the order of their
/// costliest entries. Writes the entries from index `first` of the list of all entries.
void write_sections(std::span<const AttentionEntry> entries, const HeadShape& shape, int32_t first,
                    AttentionEntry* list, PassRecord& record) {
  std::array<bool, kSections> done{};
  int section = 0;
  uint32_t items = 0;
  for (const AttentionEntry& leader : entries) {
    const RowSplit split = row_split_of(leader.flags);
    if (std::exchange(done[static_cast<size_t>(split)], true)) continue;
    AttentionEntry* end =
        std::copy_if(entries.begin(), entries.end(), list + first,
                     [split](const AttentionEntry& entry) { return row_split_of(entry.flags) == split; });
    const std::span<AttentionEntry> written(list + first, end);
    record.sections[section] = make_section(written, first, shape);
    items += static_cast<uint32_t>(record.sections[section].entry_count) *
             static_cast<uint32_t>(record.sections[section].items_per_entry);
    record.sections[section].item_end = items;
    first += static_cast<int32_t>(written.size());
    ++section;
  }
  record.sections[section] = {.item_end = items};
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
  std::vector<AttentionEntry> pass_entries;
  int32_t entry_count = 0;
  for (int64_t p = 0; p < passes; ++p) {
    const Pass& pass = plan.passes[static_cast<size_t>(p)];
    pass_entries.clear();
    for (int64_t t = pass.tile_begin; t < pass.tile_end; ++t) {
      const Tile& tile = plan.tiles[static_cast<size_t>(t)];
      pass_entries.push_back(make_entry(attention_span(plan, plan.spans[static_cast<size_t>(tile.span)]),
                                        tile.query_begin, tile.query_rows));
    }
    split_keys(pass_entries, shape.num_heads, max_kv_splits);
    PassRecord record;
    record.span_begin = static_cast<int32_t>(pass.span_begin);
    record.span_count = static_cast<int32_t>(pass.span_end - pass.span_begin);
    write_sections(pass_entries, shape, entry_count, entries, record);
    entry_count += static_cast<int32_t>(pass_entries.size());
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

CallSchedule schedule_call(const AttentionArgs& args, int64_t max_kv_splits) {
  CallSchedule whole;
  for (const AttentionSpan& span : args.spans) {
    for (int64_t begin = 0; begin < span.q_len; begin += kMaxEntryRows) {
      whole.entries.push_back(make_entry(span, begin, std::min<int64_t>(kMaxEntryRows, span.q_len - begin)));
    }
  }
  std::stable_sort(whole.entries.begin(), whole.entries.end(), sees_more);
  if (max_kv_splits == 0) return whole;

  CallSchedule split{.entries = whole.entries, .max_kv_splits = max_kv_splits};
  split_keys(split.entries, static_cast<int32_t>(args.q.shape[1]), max_kv_splits);
  const bool grew = split.entries.size() > whole.entries.size();
  const bool would_outgrow =
      whole.size_bytes() <= kSmallMetadataBytes && split.size_bytes() > kSmallMetadataBytes;
  return grew && !would_outgrow ? split : whole;
}

void write_call_metadata(const AttentionArgs& args, const CallSchedule& schedule, std::byte* out) {
  const MetadataHeader header;
  std::memcpy(out, &header, sizeof(header));
  PassRecord record;
  const HeadShape shape{static_cast<int32_t>(args.q.shape[1]),
                        (args.k.shape[2] + args.v.shape[2]) * kElementBytes};
  std::byte* arrivals = out + pass_record_offset_bytes(1);
  std::memset(arrivals, 0, static_cast<size_t>(arrivals_bytes(schedule.max_kv_splits)));
  write_sections(schedule.entries, shape, 0,
                 reinterpret_cast<AttentionEntry*>(out + entries_offset_bytes(1, schedule.max_kv_splits)),
                 record);
  std::memcpy(out + pass_record_offset_bytes(0), &record, sizeof(record));
}

}  // namespace mlaprefill::sm90
