#include "backend/cpu/workers.h"

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <algorithm>

#include "backend/cpu/parallel.h"

namespace mlaprefill::cpu {
namespace {

// More than the process may run at once would only make oneTBB print a warning.
int32_t usable_threads(int32_t wanted) {
  const auto allowed =
      static_cast<int32_t>(tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism));
  return wanted > 0 ? std::min(wanted, allowed) : allowed;
}

}  // namespace

struct Workers::Arena {
  explicit Arena(int32_t num_threads) : arena(num_threads) {}
  tbb::task_arena arena;
};

Workers::Workers(int32_t num_threads)
    : size_(usable_threads(num_threads)), arena_(std::make_unique<Arena>(size_)) {}

Workers::~Workers() = default;

void Workers::run_erased(int32_t count, void (*call)(void*), void* body) const {
  const OrderedTask enter([&] { parallel_indices(count, [&](int64_t /*worker*/) { call(body); }); });
  arena_->arena.execute(enter);
  enter.join();
}

}  // namespace mlaprefill::cpu
