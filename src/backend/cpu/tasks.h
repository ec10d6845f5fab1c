// Units of work of one call and their order: largest first, popped by an atomic index.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/checked.h"

namespace mlaprefill::cpu {

/// Query rows [query_begin, query_begin + query_rows) of one span (or request, or group), for every head.
struct Piece {
  int64_t source = 0;
  int64_t query_begin = 0;
  int64_t query_rows = 0;
  double cost = 0.0;
};

/// Pieces a worker should find to choose from, so that the last ones to end differ little.
inline constexpr double kPiecesPerWorker = 4.0;

/// (query, key) pairs of `rows` queries that see `first` keys, then one more each, up to `keys`.
double visible_pairs(int64_t rows, int64_t first, int64_t keys);

/// Cuts `queries` rows of a source into ceil(parts) pieces of equally many query blocks, at least one and at
/// most one a block. `cost(begin, rows)` prices a piece.
template <typename Cost>
void append_pieces(int64_t source, int64_t queries, int64_t query_block, double parts, const Cost& cost,
                   std::vector<Piece>& pieces) {
  const int64_t blocks = ceil_div(queries, query_block);
  const int64_t whole_parts = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(parts)), 1, blocks);
  const int64_t step = ceil_div(blocks, whole_parts) * query_block;
  for (int64_t begin = 0; begin < queries; begin += step) {
    const int64_t rows = std::min(step, queries - begin);
    pieces.push_back({source, begin, rows, cost(begin, rows)});
  }
}

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
  /// Query rows of the piece that has most.
  int64_t most_rows() const;
  int64_t size() const { return static_cast<int64_t>(pieces_.size()) * num_heads_; }

 private:
  std::vector<Piece> pieces_;
  int64_t num_heads_ = 0;
  std::atomic<int64_t> next_ = 0;
};

}  // namespace mlaprefill::cpu
