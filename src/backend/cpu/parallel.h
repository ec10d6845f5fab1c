// The one parallel loop of the CPU backend, and the order it establishes made visible to ThreadSanitizer:
// oneTBB's library is not built with it, so without this every task would look like a race with its caller.
#pragma once

#include <tbb/parallel_for.h>

#include <algorithm>
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

/// A function object for oneTBB to call: what the caller wrote before making it is seen by the calls, and
/// what they wrote by the caller after join(). Calls are not ordered among themselves. oneTBB must get the
/// object itself, not a copy: its address is what both sides know before they read anything.
template <typename Body>
class OrderedTask {
 public:
  explicit OrderedTask(const Body& body) : body_(body) { release(body_); }

  template <typename... Index>
  void operator()(Index... index) const {
    acquire(body_);
    body_(index...);
    release(ended_);
  }

  void join() const { acquire(ended_); }

 private:
#ifdef MLAPREFILL_THREAD_SANITIZER
  static void acquire(const auto& token) {
    __tsan_acquire(const_cast<void*>(static_cast<const void*>(&token)));
  }
  static void release(const auto& token) {
    __tsan_release(const_cast<void*>(static_cast<const void*>(&token)));
  }
#else
  static void acquire(const auto&) {}
  static void release(const auto&) {}
#endif

  Body body_;
  char ended_ = 0;
};

/// body(index) for 0 .. count, a task each, on the threads of the current arena.
template <typename Body>
void parallel_indices(int64_t count, const Body& body) {
  const OrderedTask task(body);
  tbb::parallel_for(int64_t{0}, count, task, tbb::simple_partitioner());
  task.join();
}

/// body(begin, end) over 0 .. count in ranges of `grain`, a task each.
template <typename Body>
void parallel_ranges(int64_t count, int64_t grain, const Body& body) {
  parallel_indices((count + grain - 1) / grain,
                   [&](int64_t range) { body(range * grain, std::min(count, (range + 1) * grain)); });
}

}  // namespace mlaprefill::cpu
