#include "bench/peak.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "bench/peak_kernels.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct PeakLoop {
  const char* isa;
  const char* instruction;
  double flop_per_step;
  float (*run)(int64_t steps);
};

#if defined(__x86_64__)
constexpr PeakLoop kLoops[] = {
    {"avx2", "vfmadd ymm", kAvx2FlopPerStep, peak_loop_avx2},
    {"avx512", "vfmadd zmm", kAvx512FlopPerStep, peak_loop_avx512},
    {"avx512_bf16", "vdpbf16ps zmm", kAvx512Bf16FlopPerStep, peak_loop_avx512_bf16},
    {"amx_bf16", "tdpbf16ps", kAmxBf16FlopPerStep, peak_loop_amx_bf16},
};
#else
constexpr std::span<const PeakLoop> kLoops{};
#endif

double seconds_on_threads(const PeakLoop& loop, int64_t steps, int threads) {
  std::vector<float> sinks(static_cast<size_t>(threads));
  const auto start = Clock::now();
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back([&loop, &sinks, steps, i] { sinks[static_cast<size_t>(i)] = loop.run(steps); });
  }
  sinks[0] = loop.run(steps);
  others.clear();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double best_gflops(const PeakLoop& loop, int threads) {
  int64_t steps = 10000;
  while (seconds_on_threads(loop, steps, threads) < 0.005) steps *= 2;
  double best = 0;
  for (int round = 0; round < 12; ++round) {
    const double flop = loop.flop_per_step * static_cast<double>(steps) * threads;
    best = std::max(best, flop / seconds_on_threads(loop, steps, threads) * 1e-9);
  }
  return best;
}

}  // namespace

std::vector<Peak> measure_peaks(int threads) {
  std::vector<Peak> peaks;
  for (const PeakLoop& loop : kLoops) {
    if (!open_backend("cpu", {.num_threads = 1, .isa = loop.isa}).ok()) continue;
    peaks.push_back({loop.isa, loop.instruction, threads, best_gflops(loop, threads)});
  }
  return peaks;
}

double peak_gflops(const std::vector<Peak>& peaks, const std::string& isa, bool bf16_inputs) {
  const bool float_tiles = !bf16_inputs && (isa == "amx_bf16" || isa == "avx512_bf16");
  const std::string wanted = float_tiles ? "avx512" : isa;
  for (const Peak& peak : peaks) {
    if (peak.isa == wanted) return peak.gflops;
  }
  return 0;
}

}  // namespace mlaprefill::bench
