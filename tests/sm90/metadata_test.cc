// The device form of a plan, read back as the kernels read it.
#include "backend/sm90/metadata.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "backend/sm90/kv_splits.h"
#include "core/checked.h"
#include "sm90/ragged_call.h"

namespace mlaprefill::sm90 {
namespace {

constexpr DeviceProperties kDevice{.num_processors = 132,
                                   .query_tile_tokens = kMaxEntryRows,
                                   .key_tile_tokens = 128,
                                   .row_alignment_rows = 1};

MlaDims dims_with(int32_t heads) {
  return {.num_heads = heads,
          .kv_lora_rank = 512,
          .qk_nope_head_dim = 128,
          .qk_rope_head_dim = 64,
          .v_head_dim = 128,
          .softmax_scale = 0.1};
}

/// A plan over a paged cache of requests with these first rows and cached tokens.
Plan make_paged_plan(const std::vector<int32_t>& starts, const std::vector<int32_t>& contexts, int32_t heads,
                     int64_t workspace_tokens) {
  constexpr int64_t kBlocks = 600;
  const auto requests = static_cast<int64_t>(contexts.size());
  const std::vector<int32_t> table(static_cast<size_t>(requests * kBlocks), 3);
  RaggedBatch batch;
  batch.query_start_loc = starts;
  batch.context_lens = contexts;
  batch.block_table = {table.data(), requests, kBlocks, kBlocks};
  batch.block_size = 16;
  auto plan = make_plan(dims_with(heads), batch, {.workspace_tokens = workspace_tokens}, kDevice);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return std::move(plan).value();
}

/// Of several passes; the requests have 300, 0, 1, 70 and 128 new tokens.
Plan make_mixed_plan(int32_t heads) {
  return make_paged_plan({0, 300, 300, 301, 371, 499}, {100, 40, 700, 0, 33}, heads, 512);
}

/// Of several passes in which keys are split.
Plan make_long_plan() { return make_paged_plan({0, 300, 300, 340}, {9000, 40, 5000}, 16, 4096); }

/// Of two passes; the last of the first one's 200 items are split, for half of the heads.
Plan make_last_wave_plan() { return make_paged_plan({0, 1280}, {6912}, 40, 4096); }

template <typename T>
T read(const std::vector<std::byte>& bytes, int64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

/// Metadata of a call without a plan whose keys are not split.
std::vector<std::byte> call_metadata(const AttentionArgs& args) {
  const Schedule schedule = schedule_call(args, 0);
  std::vector<std::byte> bytes(static_cast<size_t>(call_metadata_bytes(schedule)));
  write_call_metadata(schedule, bytes.data());
  return bytes;
}

/// The plan's metadata in a region that held other data.
std::vector<std::byte> plan_metadata(const Plan& plan) {
  std::vector<std::byte> bytes(static_cast<size_t>(plan.workspace.metadata_bytes), std::byte{0xFF});
  EXPECT_LE(write_metadata(plan, bytes.data()), plan.workspace.metadata_bytes);
  return bytes;
}

void expect_every_tile_once(const Plan& plan, bool splits) {
  ASSERT_GT(plan.passes.size(), 1U);
  const std::vector<std::byte> bytes = plan_metadata(plan);
  const auto passes = static_cast<int64_t>(plan.passes.size());
  std::map<std::array<int64_t, 4>, int64_t> expected;  // head items of each tile
  std::map<std::array<int64_t, 4>, int64_t> found;
  int64_t split_entries = 0;
  for (int64_t p = 0; p < passes; ++p) {
    const Pass& pass = plan.passes[static_cast<size_t>(p)];
    for (int64_t t = pass.tile_begin; t < pass.tile_end; ++t) {
      const Tile& tile = plan.tiles[static_cast<size_t>(t)];
      const Span& span = plan.spans[static_cast<size_t>(tile.span)];
      const auto r = static_cast<size_t>(span.request);
      const int64_t heads = tile.query_rows > 128 ? 1 : tile.query_rows > 64 ? 2 : 4;
      expected[{p, plan.query_start_loc[r] + tile.query_begin, tile.query_rows, span.row_begin}] +=
          ceil_div(plan.dims.num_heads, heads);
    }
    const auto record = read<PassRecord>(bytes, pass_record_offset_bytes(p));
    EXPECT_EQ(record.item_counter, 0U);
    uint32_t items = 0;
    for (const AttentionSection& section : record.sections) {
      if (section.entry_count == 0) {
        EXPECT_EQ(section.item_end, items);
        break;
      }
      items += static_cast<uint32_t>(section.entry_count * section.items_per_entry);
      EXPECT_EQ(section.item_end, items);
      for (int32_t e = 0; e < section.entry_count; ++e) {
        const auto entry = read<AttentionEntry>(
            bytes, entries_offset_bytes(passes, plan.workspace.max_kv_splits) +
                       (section.entry_begin + e) * static_cast<int64_t>(sizeof(AttentionEntry)));
        EXPECT_LE(entry.q_rows * heads_per_item(row_split_of(entry.flags)), kMaxEntryRows);
        split_entries += is_split(entry);
        if (kv_split_index_of(entry.flags) > 0) continue;
        found[{p, entry.q_row, entry.q_rows, entry.kv_row}] += section.items_per_entry;
      }
    }
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(split_entries > 0, splits);
  for (int64_t i = 0; i < arrivals_bytes(plan.workspace.max_kv_splits); ++i) {
    ASSERT_EQ(read<std::byte>(bytes, pass_record_offset_bytes(passes) + i), std::byte{0});
  }
}

TEST(Sm90Metadata, FitsItsRegionAndHoldsEveryTileOnce) {
  expect_every_tile_once(make_mixed_plan(10), false);
  expect_every_tile_once(make_long_plan(), true);
  expect_every_tile_once(make_last_wave_plan(), true);
}

TEST(Sm90Metadata, TheLastWaveOfAPlanIsOfSomeHeads) {
  const std::vector<std::byte> bytes = plan_metadata(make_last_wave_plan());
  EXPECT_EQ(read<PassRecord>(bytes, pass_record_offset_bytes(0)).sections[2].first_head_item, 20);
}

void expect_gather_spans(const Plan& plan) {
  const std::vector<std::byte> bytes = plan_metadata(plan);
  const auto header = read<MetadataHeader>(bytes, 0);
  EXPECT_EQ(header.block_size, 16);
  for (size_t s = 0; s < plan.spans.size(); ++s) {
    const auto span =
        read<GatherSpan>(bytes, header.spans_offset_bytes + static_cast<int64_t>(s * sizeof(GatherSpan)));
    const auto r = static_cast<size_t>(plan.spans[s].request);
    EXPECT_EQ(span.key_begin, plan.spans[s].key_begin);
    EXPECT_EQ(span.rows, plan.spans[s].length());
    EXPECT_EQ(span.context_len, plan.context_lens[r]);
    EXPECT_EQ(span.first_new_row, plan.query_start_loc[r]);
    EXPECT_EQ(span.block_begin, plan.block_begin[r]);
  }
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    EXPECT_EQ(read<int32_t>(bytes, header.blocks_offset_bytes + static_cast<int64_t>(b * sizeof(int32_t))),
              plan.blocks[b]);
  }
}

TEST(Sm90Metadata, GatherSpansFollowThePlan) {
  expect_gather_spans(make_mixed_plan(1));
  expect_gather_spans(make_long_plan());
  expect_gather_spans(make_last_wave_plan());
}

// What a causal entry sees is bottom-right: the carried offset moves with the tile.
TEST(Sm90Metadata, CallEntriesCarryTheCausalOffset) {
  const std::vector<AttentionSpan> spans{
      {.q_row = 5, .q_len = 300, .k_row = 2, .k_len = 310, .causal_offset = 10},
      {.q_row = 305, .q_len = 3, .k_row = 400, .k_len = 0},
      {.q_row = 308, .q_len = 0, .k_row = 400, .k_len = 9}};
  AttentionArgs args;
  args.q = ConstTensor(nullptr, DType::kBF16, {308, 4, 192});
  args.k = ConstTensor(nullptr, DType::kBF16, {409, 4, 192});
  args.v = ConstTensor(nullptr, DType::kBF16, {409, 4, 128});
  args.spans = spans;
  const std::vector<std::byte> bytes = call_metadata(args);
  std::map<int32_t, AttentionEntry> entries;
  for (int64_t e = 0; e < 3; ++e) {
    const auto entry = read<AttentionEntry>(
        bytes, entries_offset_bytes(1, 0) + e * static_cast<int64_t>(sizeof(AttentionEntry)));
    entries[entry.q_row] = entry;
  }
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[5].causal_offset, 10);
  EXPECT_EQ(entries[5].q_rows, 256);
  EXPECT_EQ(entries[261].causal_offset, 266);
  EXPECT_EQ(entries[261].q_rows, 44);
  EXPECT_EQ(entries[305].kv_len, 0);
  EXPECT_EQ(entries[305].causal_offset, AttentionEntry::kNotCausal);
}

// Four requests of 512 new tokens over 16,384: what L2 cannot hold is shared between neighbours.
TEST(Sm90Metadata, EntriesThatShareManyKeysStandTogetherWhenThereIsMuchToDo) {
  const auto spans = spans_of(std::vector<Request>(4, {512, 16896}), true);
  for (const int64_t heads : {16, 256}) {
    const std::vector<std::byte> bytes = call_metadata(args_of(spans, heads));
    std::vector<int32_t> rows;
    for (int64_t e = 0; e < 8; ++e) {
      rows.push_back(read<AttentionEntry>(
                         bytes, entries_offset_bytes(1, 0) + e * static_cast<int64_t>(sizeof(AttentionEntry)))
                         .q_row);
    }
    const std::vector<int32_t> by_cost{256, 768, 1280, 1792, 0, 512, 1024, 1536};
    const std::vector<int32_t> by_keys{256, 0, 768, 512, 1280, 1024, 1792, 1536};
    EXPECT_EQ(rows, heads == 16 ? by_cost : by_keys) << heads << " heads";
  }
}

struct Grouping {
  std::vector<Request> requests;
  int64_t heads;
  int64_t group_items;
};

// Groups of 5, 5, 5 and 1 of 16 heads, or of one head where a few requests have most keys, would leave much
// of the device idle over the last one. Many items of about the same cost that share keys go head by head;
// keys that nobody shares and L2 cannot hold are read by all heads at once.
TEST(Sm90Metadata, GroupsOfHeadsFillTheDevice) {
  const std::vector<Request> apart(32, {64, 2048});
  const std::vector<Request> uneven{{2048, 62048}, {2048, 22048}, {2048, 10048}};
  for (const Grouping& c : std::vector<Grouping>{{{{9216, 9216}}, 16, 4},
                                                 {{{9216, 9216}}, 128, 4},
                                                 {{{9216, 9216}}, 20, 5},
                                                 {{{1024, 1024}}, 16, 16},
                                                 {{{102'400, 102'400}}, 16, 1},
                                                 {{{256, 9216}}, 16, 16},
                                                 {uneven, 16, 8},
                                                 {uneven, 128, 8},
                                                 {{{8192, 49152}}, 16, 4},
                                                 {{{8192, 49152}}, 128, 1},
                                                 {apart, 128, 32}}) {
    const auto spans = spans_of(c.requests, true);
    const std::vector<std::byte> bytes = call_metadata(args_of(spans, c.heads));
    EXPECT_EQ(read<PassRecord>(bytes, pass_record_offset_bytes(0)).sections[0].group_items, c.group_items)
        << c.requests[0].keys << " keys, " << c.heads << " heads";
  }
}

}  // namespace
}  // namespace mlaprefill::sm90
