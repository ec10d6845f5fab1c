// 64-bit arithmetic that remembers an overflow instead of wrapping.
#pragma once

#include <cstdint>

namespace mlaprefill {

/// A non-negative count that becomes invalid, and stays so, once a sum or product leaves int64.
class Checked64 {
 public:
  constexpr Checked64(int64_t value) : value_(value) {}

  constexpr bool valid() const { return valid_; }
  /// Meaningful only when valid().
  constexpr int64_t value() const { return value_; }

  friend constexpr Checked64 operator+(Checked64 a, Checked64 b) {
    Checked64 sum(0);
    sum.valid_ = !__builtin_add_overflow(a.value_, b.value_, &sum.value_) && a.valid_ && b.valid_;
    return sum;
  }
  friend constexpr Checked64 operator*(Checked64 a, Checked64 b) {
    Checked64 product(0);
    product.valid_ = !__builtin_mul_overflow(a.value_, b.value_, &product.value_) && a.valid_ && b.valid_;
    return product;
  }
  friend constexpr Checked64 max(Checked64 a, Checked64 b) {
    Checked64 larger(a.value_ > b.value_ ? a.value_ : b.value_);
    larger.valid_ = a.valid_ && b.valid_;
    return larger;
  }

 private:
  int64_t value_;
  bool valid_ = true;
};

constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return value / divisor + (value % divisor > 0); }
constexpr int64_t round_down(int64_t value, int64_t multiple) { return value - value % multiple; }
/// The caller keeps `value` at least `multiple` below the largest int64.
constexpr int64_t round_up(int64_t value, int64_t multiple) { return ceil_div(value, multiple) * multiple; }

}  // namespace mlaprefill
