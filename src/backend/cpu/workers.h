// Worker threads of one backend: a oneTBB arena of a given size, entered by any number of calling threads.
#pragma once

#include <cstdint>
#include <memory>

namespace mlaprefill::cpu {

class Workers {
 public:
  /// 0 threads: as many as this process may use; never more than that.
  explicit Workers(int32_t num_threads);
  ~Workers();

  int32_t size() const { return size_; }

  /// Calls body() once on each of `count` <= size() workers at once, the caller being one of them, and
  /// returns when all are done. body must tolerate that fewer workers come, or that one comes more than once.
  template <typename Body>
  void run(int32_t count, Body& body) const {
    run_erased(
        count, [](void* erased) { (*static_cast<Body*>(erased))(); }, &body);
  }

  /// Calls body() once, inside the arena: parallel algorithms it uses keep to these workers.
  template <typename Body>
  void execute(const Body& body) const {
    auto once = [&body] { body(); };
    run(1, once);
  }

 private:
  void run_erased(int32_t count, void (*call)(void*), void* body) const;

  struct Arena;
  int32_t size_;
  std::unique_ptr<Arena> arena_;
};

}  // namespace mlaprefill::cpu
