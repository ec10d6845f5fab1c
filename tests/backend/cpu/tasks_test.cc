// Costs, order and hand-out of tasks.
#include "backend/cpu/tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace mlaprefill::cpu {
namespace {

TEST(VisiblePairs, CountsWhatALoopCounts) {
  for (int64_t rows : {1, 2, 7}) {
    for (int64_t first : {-5, -1, 0, 1, 4, 20}) {
      for (int64_t keys : {0, 1, 5, 30}) {
        int64_t pairs = 0;
        for (int64_t i = 0; i < rows; ++i) pairs += std::clamp<int64_t>(first + i, 0, keys);
        EXPECT_EQ(visible_pairs(rows, first, keys), static_cast<double>(pairs))
            << rows << " " << first << " " << keys;
      }
    }
  }
}

TEST(TaskQueue, HandsOutEveryHeadOfEveryPieceOnceLargestFirst) {
  TaskQueue queue;
  queue.pieces() = {{0, 0, 1, 1.0}, {1, 0, 1, 5.0}, {2, 0, 1, 3.0}};
  queue.start(2);
  EXPECT_EQ(queue.size(), 6);
  std::vector<std::pair<int64_t, int64_t>> order;
  for (TaskQueue::Task task = queue.pop(); task.piece != nullptr; task = queue.pop()) {
    order.emplace_back(task.piece->source, task.head);
  }
  EXPECT_EQ(order,
            (std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {1, 1}, {2, 0}, {2, 1}, {0, 0}, {0, 1}}));
}

TEST(TaskQueue, ThreadsNeverGetTheSameTask) {
  TaskQueue queue;
  queue.pieces().assign(500, {0, 0, 1, 1.0});
  queue.start(4);
  std::vector<int64_t> taken(4);
  std::vector<std::thread> threads;
  for (int64_t& count : taken) {
    threads.emplace_back([&] {
      while (queue.pop().piece != nullptr) ++count;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken[0] + taken[1] + taken[2] + taken[3], 2000);
}

}  // namespace
}  // namespace mlaprefill::cpu
