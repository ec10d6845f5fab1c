// Query tiles: every query that sees a key is in one tile of the span, and the dear ones come first.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "core/checked.h"
#include "plan/batch.h"

namespace mlaprefill {
namespace {

using testing::Batch;
using testing::kAllModes;
using testing::random_batch;
using testing::small_dims;
using testing::with_mode;

DeviceProperties tiled(int32_t query_tile_tokens, int32_t key_tile_tokens) {
  DeviceProperties device;
  device.query_tile_tokens = query_tile_tokens;
  device.key_tile_tokens = key_tile_tokens;
  return device;
}

TEST(Tiles, NoneWhenTheBackendSchedulesByItself) {
  const Batch batch({100}, {100});
  const Result<Plan> plan = make_plan(small_dims(), batch.view());
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->tiles.empty());
  EXPECT_EQ(plan->passes[0].tile_end, 0);
}

TEST(Tiles, CostIsTheKeyTilesWithAVisibleKey) {
  // 40 queries after 10 cached keys, in tiles of 16 queries and 8 keys: they see 26, 42 and 50 keys.
  const Batch batch({40}, {10});
  const Result<Plan> plan = make_plan(small_dims(), batch.view(), {}, tiled(16, 8));
  ASSERT_TRUE(plan.ok());
  std::vector<std::tuple<int64_t, int32_t, int32_t>> tiles;
  for (const Tile& tile : plan->tiles) tiles.emplace_back(tile.query_begin, tile.query_rows, tile.key_tiles);
  EXPECT_EQ(tiles, (std::vector<std::tuple<int64_t, int32_t, int32_t>>{{32, 8, 7}, {16, 16, 6}, {0, 16, 4}}));
}

TEST(Tiles, CostsOfMoreThanOneByteAreSorted) {
  const Batch batch({1, 1, 1, 1}, {64 * 300, 64 * 70000, 10, 64 * 257});
  const Result<Plan> plan =
      make_plan(small_dims(), batch.view(), with_mode(PlanMode::kBridge, 1 << 30), tiled(64, 64));
  ASSERT_TRUE(plan.ok());
  std::vector<int32_t> costs;
  for (const Tile& tile : plan->tiles) costs.push_back(tile.key_tiles);
  EXPECT_EQ(costs, (std::vector<int32_t>{70001, 301, 258, 1}));
}

TEST(Tiles, CoverTheQueriesOfEverySpanOnce) {
  for (uint64_t seed = 0; seed < 5000 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Batch batch = random_batch(random);
    const int32_t query_tile = static_cast<int32_t>(1 + random() % 40);
    const int32_t key_tile = static_cast<int32_t>(1 + random() % 40);
    const PlanOptions options = with_mode(kAllModes[random() % 4], 64 + static_cast<int64_t>(random() % 300));
    const Result<Plan> plan = make_plan(small_dims(), batch.view(), options, tiled(query_tile, key_tile));
    ASSERT_TRUE(plan.ok()) << plan.status().message();

    std::map<std::pair<int64_t, int64_t>, int32_t> key_tiles;  // by (span, query)
    for (const Pass& pass : plan->passes) {
      for (int64_t t = pass.tile_begin; t < pass.tile_end; ++t) {
        const Tile& tile = plan->tiles[static_cast<size_t>(t)];
        EXPECT_GE(tile.span, pass.span_begin);
        EXPECT_LT(tile.span, pass.span_end);
        if (t > pass.tile_begin) {
          EXPECT_LE(tile.key_tiles, plan->tiles[static_cast<size_t>(t - 1)].key_tiles);
        }
        for (int64_t i = tile.query_begin; i < tile.query_begin + tile.query_rows; ++i) {
          EXPECT_TRUE(key_tiles.emplace(std::make_pair(tile.span, i), tile.key_tiles).second);
        }
      }
    }
    for (int64_t s = 0; s < static_cast<int64_t>(plan->spans.size()); ++s) {
      const Span& span = plan->spans[static_cast<size_t>(s)];
      const size_t r = static_cast<size_t>(span.request);
      for (int64_t i = 0; i < batch.query_lens[r]; ++i) {
        const int64_t visible = std::min(span.key_end, batch.context_lens[r] + i + 1) - span.key_begin;
        const auto found = key_tiles.find({s, i});
        if (visible > 0 || span.last) {
          ASSERT_NE(found, key_tiles.end());
          EXPECT_GE(found->second, ceil_div(std::max<int64_t>(visible, 0), key_tile));
        }
        if (found != key_tiles.end()) key_tiles.erase(found);
      }
    }
    EXPECT_TRUE(key_tiles.empty());
  }
}

}  // namespace
}  // namespace mlaprefill
