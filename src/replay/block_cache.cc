#include "replay/block_cache.h"

#include <algorithm>

namespace mlaprefill {

int32_t BlockCache::find(int64_t key) const {
  const auto entry = published_.find(key);
  return entry == published_.end() ? kNone : entry->second;
}

int32_t BlockCache::allocate() {
  int32_t block = kNone;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (static_cast<int64_t>(blocks_.size()) < num_blocks_) {
    block = static_cast<int32_t>(blocks_.size());
    blocks_.emplace_back();
  } else if (oldest_ != kNone) {
    block = oldest_;
    unkeep(block);
    published_.erase(at(block).key);
    at(block).key = kNoKey;
    ++evictions_;
  } else {
    return kNone;
  }
  at(block).references = 1;
  most_in_use_ = std::max(most_in_use_, ++in_use_);
  return block;
}

void BlockCache::acquire(int32_t block) {
  if (at(block).references++ > 0) return;
  unkeep(block);
  most_in_use_ = std::max(most_in_use_, ++in_use_);
}

void BlockCache::release(int32_t block) {
  if (--at(block).references > 0) return;
  --in_use_;
  if (at(block).key == kNoKey) {
    free_.push_back(block);
  } else {
    keep(block);
  }
}

void BlockCache::publish(int32_t block, int64_t key) {
  if (published_.try_emplace(key, block).second) at(block).key = key;
}

void BlockCache::keep(int32_t block) {
  at(block).older = newest_;
  at(block).newer = kNone;
  (newest_ == kNone ? oldest_ : at(newest_).newer) = block;
  newest_ = block;
}

void BlockCache::unkeep(int32_t block) {
  const Block& entry = at(block);
  (entry.older == kNone ? oldest_ : at(entry.older).newer) = entry.newer;
  (entry.newer == kNone ? newest_ : at(entry.newer).older) = entry.older;
}

}  // namespace mlaprefill
