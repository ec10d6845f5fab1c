// Units of work of one call and their order: largest first, popped by an atomic index.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace mlaprefill::cpu {

/// Query rows [query_begin, query_begin + query_rows) of one span (or request, or group), for every head.
struct Piece {
  int64_t source = 0;
  int64_t query_begin = 0;
  int64_t query_rows = 0;
  double cost = 0.0;
};

/// (query, key) pairs of `rows` queries that see `first` keys, then one more each, up to `keys`.
double visible_pairs(int64_t rows, int64_t first, int64_t keys);

/// Sorts pieces by falling cost and hands out (piece, head) pairs in that order to any number of threads.
class TaskQueue {
 public:
  struct Task {
    const Piece* piece = nullptr;  ///< nullptr: none is left
    int64_t head = 0;
  };

  std::vector<Piece>& pieces() { return pieces_; }

  /// Call once all pieces are in.
  void start(int64_t num_heads);
  Task pop();
  int64_t size() const { return static_cast<int64_t>(pieces_.size()) * num_heads_; }

 private:
  std::vector<Piece> pieces_;
  int64_t num_heads_ = 0;
  std::atomic<int64_t> next_ = 0;
};

}  // namespace mlaprefill::cpu
