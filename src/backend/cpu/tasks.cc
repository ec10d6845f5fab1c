#include "backend/cpu/tasks.h"

#include <algorithm>
#include <tuple>

namespace mlaprefill::cpu {

double visible_pairs(int64_t rows, int64_t first, int64_t keys) {
  const int64_t blind = std::clamp<int64_t>(1 - first, 0, rows);
  const int64_t growing = std::clamp<int64_t>(keys - first, blind, rows);
  const auto sum_to = [first](int64_t i) {
    return static_cast<double>(i) * static_cast<double>(first) +
           0.5 * static_cast<double>(i) * static_cast<double>(i - 1);
  };
  return sum_to(growing) - sum_to(blind) + static_cast<double>(rows - growing) * static_cast<double>(keys);
}

void TaskQueue::start(int64_t num_heads) {
  num_heads_ = num_heads;
  next_.store(0, std::memory_order_relaxed);
  std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::tuple(-a.cost, a.source, a.query_begin) < std::tuple(-b.cost, b.source, b.query_begin);
  });
}

int64_t TaskQueue::most_rows() const {
  int64_t rows = 0;
  for (const Piece& piece : pieces_) rows = std::max(rows, piece.query_rows);
  return rows;
}

TaskQueue::Task TaskQueue::pop() {
  const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= size()) return {};
  return {&pieces_[static_cast<size_t>(index / num_heads_)], index % num_heads_};
}

}  // namespace mlaprefill::cpu
