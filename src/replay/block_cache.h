// The bookkeeping of a paged prefix cache: which block holds what, who uses it, which goes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace mlaprefill {

/// Blocks (cache pages) are handed out by number. A block is in use (references > 0), kept (no reference, but
/// its content can be found again by key) or free. Kept blocks are evicted, least recently used first, when
/// no free one is left.
class BlockCache {
 public:
  static constexpr int32_t kNone = -1;

  explicit BlockCache(int64_t num_blocks) : num_blocks_(num_blocks) {}

  int64_t num_blocks() const { return num_blocks_; }
  int64_t blocks_in_use() const { return in_use_; }
  /// Blocks that allocate() could hand out before it fails.
  int64_t blocks_available() const { return num_blocks_ - in_use_; }
  int64_t evictions() const { return evictions_; }
  int64_t most_blocks_in_use() const { return most_in_use_; }
  /// Highest block number ever handed out, plus one.
  int64_t blocks_touched() const { return static_cast<int64_t>(blocks_.size()); }

  /// The block whose content was published under `key`, or kNone.
  int32_t find(int64_t key) const;
  bool in_use(int32_t block) const { return at(block).references > 0; }

  /// A block with one reference and no content; kNone when every block is in use.
  int32_t allocate();
  /// One more reference to a block that is in use or kept.
  void acquire(int32_t block);
  /// Gives one reference back. The content of a published block is kept until it is evicted.
  void release(int32_t block);
  /// Lets find(key) return this block, unless another block already holds that content.
  void publish(int32_t block, int64_t key);

 private:
  static constexpr int64_t kNoKey = -1;

  struct Block {
    int64_t key = kNoKey;
    int32_t references = 0;
    int32_t older = kNone;  ///< neighbours among the kept blocks
    int32_t newer = kNone;
  };

  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  void keep(int32_t block);
  void unkeep(int32_t block);

  int64_t num_blocks_;
  int64_t in_use_ = 0;
  int64_t most_in_use_ = 0;
  int64_t evictions_ = 0;
  std::vector<Block> blocks_;  ///< grows as blocks are first handed out
  std::vector<int32_t> free_;
  std::unordered_map<int64_t, int32_t> published_;
  int32_t oldest_ = kNone;
  int32_t newest_ = kNone;
};

}  // namespace mlaprefill
