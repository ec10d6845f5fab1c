// The machine's arithmetic ceilings, measured in the run that uses them.
#pragma once

#include <string>
#include <vector>

namespace mlaprefill::bench {

/// Highest rate seen of one instruction kind on `threads` threads.
struct Peak {
  std::string isa;          ///< "avx2", "avx512", "avx512_bf16" or "amx_bf16"
  std::string instruction;  ///< what was issued
  int threads = 0;
  double gflops = 0;
};

/// Measures every instruction kind this CPU and operating system grant; about 0.1 s each.
std::vector<Peak> measure_peaks(int threads);

/// The ceiling of a backend that runs `isa` tiles on inputs of this width; 0 when it was not measured.
double peak_gflops(const std::vector<Peak>& peaks, const std::string& isa, bool bf16_inputs);

}  // namespace mlaprefill::bench
