// Denormal numbers as zero while kernels run.
#pragma once

#include <xmmintrin.h>

namespace mlaprefill::cpu {

/// Sets flush-to-zero and denormals-are-zero on this thread until it goes out of scope. Probabilities of keys
/// far below a row's maximum are denormal and would each cost a microcode assist.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000;
  static constexpr unsigned kDenormalsAreZero = 0x0040;
  unsigned saved_;
};

}  // namespace mlaprefill::cpu
