// ISA levels of the CPU backend and the choice among them, as a pure function of injected CPU facts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cpu/isa_level.h"
#include "mlaprefill/status.h"

namespace mlaprefill::cpu {

std::string_view to_string(IsaLevel level);

/// What CPUID, XCR0 and the kernel say of this machine.
struct CpuFacts {
  std::string vendor;   ///< CPUID vendor string, e.g. "GenuineIntel"
  bool avx2 = false;    ///< AVX2, FMA, F16C and BMI2 together
  bool avx512 = false;  ///< AVX-512 F, CD, BW, DQ and VL together
  bool avx512_bf16 = false;
  bool amx_bf16 = false;       ///< AMX-TILE and AMX-BF16 together
  uint64_t xcr0 = 0;           ///< register state the operating system saves; 0 without OSXSAVE
  bool amx_permitted = false;  ///< arch_prctl granted the use of tile data
};

/// Reads the facts of the running machine. Asks the kernel for the permission to use AMX tiles, which holds
/// for every thread of the process, so it must come before the first worker thread.
CpuFacts read_cpu_facts();

/// Why `level` cannot run under these facts; empty: it can.
std::string missing_for(IsaLevel level, const CpuFacts& facts);

struct IsaChoice {
  IsaLevel level = IsaLevel::kScalar;
  std::string why;  ///< one clause per level that was preferred or higher and not taken; may be empty
};

/// Chooses the level for `requested` ("auto" or a level's name). kInvalidArgument names the known levels,
/// kUnavailable says what the forced level lacks.
Result<IsaChoice> choose_isa(std::string_view requested, const CpuFacts& facts);

}  // namespace mlaprefill::cpu
