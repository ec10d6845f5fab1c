// Wall time of the stages of a replay.
#pragma once

#include <chrono>

namespace mlaprefill {

class Stopwatch {
 public:
  /// Seconds since the start or the last lap.
  double lap_s() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace mlaprefill
