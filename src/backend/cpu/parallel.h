// The one parallel loop of the CPU backend, and the order it establishes made visible to ThreadSanitizer:
// oneTBB's library is not built with it, so without this every task would look like a race with its caller.
#pragma once

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>

#include <cstdint>

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MLAPREFILL_THREAD_SANITIZER 1
#endif
#endif
#ifdef MLAPREFILL_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace mlaprefill::cpu {

/// What the caller wrote before the tasks is seen by them, and what they wrote by the caller after joining.
/// Tasks are not ordered among themselves.
class TaskOrder {
 public:
  TaskOrder() { release(started_); }
  void enter_task() { acquire(started_); }
  void leave_task() { release(ended_); }
  void join() { acquire(ended_); }

 private:
#ifdef MLAPREFILL_THREAD_SANITIZER
  static void acquire(char& token) { __tsan_acquire(&token); }
  static void release(char& token) { __tsan_release(&token); }
#else
  static void acquire(char&) {}
  static void release(char&) {}
#endif

  char started_ = 0;
  char ended_ = 0;
};

/// body(begin, end) over 0 .. count in ranges of about `grain`, on the threads of the current arena.
template <typename Body>
void parallel_ranges(int64_t count, int64_t grain, const Body& body) {
  TaskOrder order;
  tbb::parallel_for(tbb::blocked_range<int64_t>(0, count, static_cast<size_t>(grain)),
                    [&](const tbb::blocked_range<int64_t>& range) {
                      order.enter_task();
                      body(range.begin(), range.end());
                      order.leave_task();
                    });
  order.join();
}

}  // namespace mlaprefill::cpu
