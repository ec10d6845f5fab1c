// Memory that is lent to a call and kept for the next one, so that nothing is allocated once sizes have
// settled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace mlaprefill::cpu {

/// A 64-byte aligned block that only grows; growing drops its contents.
class AlignedBuffer {
 public:
  /// At least `count` elements of T, uninitialised or with what an earlier use left.
  template <typename T>
  T* reserve(int64_t count) {
    return static_cast<T*>(reserve_bytes(count * static_cast<int64_t>(sizeof(T))));
  }

  void* reserve_bytes(int64_t bytes) {
    if (bytes > capacity_bytes_) {
      data_.reset();
      capacity_bytes_ = 0;
      data_.reset(::operator new(static_cast<size_t>(bytes), kAlignment));
      capacity_bytes_ = bytes;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(void* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<void, Delete> data_;
  int64_t capacity_bytes_ = 0;
};

/// Lends objects of T to any number of threads and takes them back.
template <typename T>
class Pool {
 public:
  class Lease {
   public:
    explicit Lease(Pool& pool) : pool_(pool), object_(pool.take()) {}
    ~Lease() { pool_.give_back(std::move(object_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    T& operator*() { return *object_; }
    T* operator->() { return object_.get(); }

   private:
    Pool& pool_;
    std::unique_ptr<T> object_;
  };

 private:
  std::unique_ptr<T> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<T> object = std::move(idle_.back());
        idle_.pop_back();
        return object;
      }
      ++lent_or_idle_;
      idle_.reserve(lent_or_idle_);  // so that giving back cannot fail
    }
    return std::make_unique<T>();
  }

  void give_back(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(object));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> idle_;
  size_t lent_or_idle_ = 0;
};

}  // namespace mlaprefill::cpu
