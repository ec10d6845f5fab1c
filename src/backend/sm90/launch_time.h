// An estimate of how long the items of a launch take, for the host to weigh schedules by.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace mlaprefill::sm90 {

/// Clusters that an H100 SXM or H200 runs at once; schedules are made for them.
inline constexpr int64_t kClusters = 66;

/// Times in tenths of that of a key tile: of an item besides its tiles, of writing a split's partials, and of
/// reading those of one split when they are merged.
inline constexpr int64_t kTileTime = 10;
inline constexpr int64_t kItemTime = 23;
inline constexpr int64_t kStoreTime = 8;
inline constexpr int64_t kMergeTime = 4;

constexpr int64_t item_time(int64_t tiles) { return tiles * kTileTime + kItemTime; }

/// When each cluster is free: a heap, the earliest first.
class Clusters {
 public:
  Clusters() = default;
  /// Free one after the other, the last one after nearly `time`.
  explicit Clusters(int64_t time) {
    for (int64_t i = 0; i < kClusters; ++i) busy_until_[static_cast<size_t>(i)] = i * time / kClusters;
  }

  /// Gives the first cluster that is free something to do and returns when it will be free again.
  int64_t occupy(int64_t time) {
    const int64_t end = busy_until_[0] + time;
    size_t at = 0;
    for (size_t child = 1; child < busy_until_.size(); child = 2 * at + 1) {
      if (child + 1 < busy_until_.size() && busy_until_[child + 1] < busy_until_[child]) ++child;
      if (busy_until_[child] >= end) break;
      busy_until_[at] = busy_until_[child];
      at = child;
    }
    busy_until_[at] = end;
    return end;
  }

  int64_t all_free() const { return *std::max_element(busy_until_.begin(), busy_until_.end()); }

 private:
  std::array<int64_t, kClusters> busy_until_{};
};

}  // namespace mlaprefill::sm90
