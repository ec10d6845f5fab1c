#include "replay/block_cache.h"

#include <gtest/gtest.h>

namespace mlaprefill {
namespace {

TEST(BlockCache, HandsOutEachBlockOnce) {
  BlockCache cache(3);
  EXPECT_EQ(cache.allocate(), 0);
  EXPECT_EQ(cache.allocate(), 1);
  EXPECT_EQ(cache.allocate(), 2);
  EXPECT_EQ(cache.allocate(), BlockCache::kNone);
  EXPECT_EQ(cache.blocks_available(), 0);
  cache.release(1);
  EXPECT_EQ(cache.blocks_available(), 1);
  EXPECT_EQ(cache.allocate(), 1);
  EXPECT_EQ(cache.evictions(), 0);  // nothing of use was in it
}

TEST(BlockCache, KeepsPublishedBlocksUntilTheyAreTheOldest) {
  BlockCache cache(3);
  for (int64_t key = 10; key < 13; ++key) cache.publish(cache.allocate(), key);
  for (const int32_t block : {1, 0, 2}) cache.release(block);
  EXPECT_EQ(cache.blocks_in_use(), 0);
  EXPECT_EQ(cache.find(10), 0);
  EXPECT_EQ(cache.allocate(), 1);  // released first
  EXPECT_EQ(cache.find(11), BlockCache::kNone);
  EXPECT_EQ(cache.find(12), 2);
  EXPECT_EQ(cache.evictions(), 1);
}

TEST(BlockCache, AcquiringAKeptBlockSavesIt) {
  BlockCache cache(2);
  cache.publish(cache.allocate(), 7);
  cache.publish(cache.allocate(), 8);
  cache.release(0);
  cache.release(1);
  cache.acquire(0);
  EXPECT_TRUE(cache.in_use(0));
  EXPECT_EQ(cache.allocate(), 1);
  EXPECT_EQ(cache.allocate(), BlockCache::kNone);
  cache.acquire(0);
  cache.release(0);
  EXPECT_TRUE(cache.in_use(0));
  cache.release(0);
  EXPECT_FALSE(cache.in_use(0));
  EXPECT_EQ(cache.most_blocks_in_use(), 2);
}

TEST(BlockCache, PublishesContentOnce) {
  BlockCache cache(2);
  cache.publish(cache.allocate(), 7);
  cache.publish(cache.allocate(), 7);  // the same content, computed by another request at the same time
  EXPECT_EQ(cache.find(7), 0);
  cache.release(1);
  EXPECT_EQ(cache.allocate(), 1);  // not kept
  EXPECT_EQ(cache.find(7), 0);
}

}  // namespace
}  // namespace mlaprefill
