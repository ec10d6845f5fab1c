// What worker threads do between calls, and how evenly work is cut for them.
#include "backend/cpu/workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "backend/cpu/tasks.h"

namespace mlaprefill::cpu {
namespace {

double process_cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST(Workers, CallTheBodyOncePerWorkerAskedFor) {
  const Workers workers(0);
  std::atomic<int32_t> calls = 0;
  auto body = [&] { ++calls; };
  workers.run(workers.size(), body);
  EXPECT_EQ(calls, workers.size());
}

TEST(Workers, UseNoCpuTimeBetweenCalls) {
  const Workers workers(0);
  auto busy = [] {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
    while (std::chrono::steady_clock::now() < end) {
    }
  };
  for (int i = 0; i < 3; ++i) workers.run(workers.size(), busy);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // workers may look for more work for a moment
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(process_cpu_seconds() - before, 0.03);
}

/// Share of the time `workers` are busy when each takes the next task as soon as it is free and tasks take
/// what they cost.
double busy_share(const std::vector<int64_t>& lens, int64_t heads, int32_t workers) {
  const auto cost = [](int64_t begin, int64_t rows) { return visible_pairs(rows, begin + 1, begin + rows); };
  double total = 0.0;
  for (int64_t len : lens) total += cost(0, len) * static_cast<double>(heads);
  TaskQueue queue;
  for (size_t i = 0; i < lens.size(); ++i) {
    const double parts = cost(0, lens[i]) * kPiecesPerWorker * workers / total;
    append_pieces(static_cast<int64_t>(i), lens[i], 128, parts, cost, queue.pieces());
  }
  queue.start(heads);
  std::vector<double> free_at(static_cast<size_t>(workers));
  for (TaskQueue::Task task = queue.pop(); task.piece != nullptr; task = queue.pop()) {
    *std::min_element(free_at.begin(), free_at.end()) += task.piece->cost;
  }
  return total / workers / *std::max_element(free_at.begin(), free_at.end());
}

TEST(Schedule, KeepsSixteenWorkersBusy) {
  const std::vector<int64_t> ragged = {897, 202, 238, 69, 826, 262, 188, 191, 207, 129, 472, 246, 169};
  for (int32_t workers : {2, 4, 8, 16}) {
    EXPECT_GT(busy_share({2048}, 16, workers), 0.95) << workers;
    EXPECT_GT(busy_share({2048}, 5, workers), 0.85) << workers;
    EXPECT_GT(busy_share(ragged, 16, workers), 0.95) << workers;
    EXPECT_GT(busy_share(std::vector<int64_t>(64, 4), 16, workers), 0.95) << workers;
  }
}

}  // namespace
}  // namespace mlaprefill::cpu
