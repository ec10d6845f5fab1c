#include "backend/cpu/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "core/error.h"

namespace mlaprefill::cpu {
namespace {

constexpr std::array kLevels = {IsaLevel::kAmxBf16, IsaLevel::kAvx512Bf16, IsaLevel::kAvx512, IsaLevel::kAvx2,
                                IsaLevel::kScalar};

// XCR0 bits.
constexpr uint64_t kSseAvxState = 0x6;
constexpr uint64_t kAvx512State = 0xE0;
constexpr uint64_t kTileState = 0x60000;

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool bit(uint32_t word, int index) { return ((word >> index) & 1U) != 0; }

uint64_t read_xcr0() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

bool request_amx_permission() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

bool has_state(const CpuFacts& facts, uint64_t state) { return (facts.xcr0 & state) == state; }

std::string missing_avx2(const CpuFacts& facts) {
  if (!facts.avx2) return "the CPU lacks AVX2, FMA, F16C or BMI2";
  if (!has_state(facts, kSseAvxState)) return "the operating system does not save AVX state";
  return {};
}

std::string missing_avx512(const CpuFacts& facts) {
  if (std::string missing = missing_avx2(facts); !missing.empty()) return missing;
  if (!facts.avx512) return "the CPU lacks AVX-512 F, CD, BW, DQ or VL";
  if (!has_state(facts, kAvx512State)) return "the operating system does not save AVX-512 state";
  return {};
}

std::string missing_avx512_bf16(const CpuFacts& facts) {
  if (std::string missing = missing_avx512(facts); !missing.empty()) return missing;
  return facts.avx512_bf16 ? "" : "the CPU lacks AVX512_BF16";
}

std::string missing_amx_bf16(const CpuFacts& facts) {
  if (std::string missing = missing_avx512_bf16(facts); !missing.empty()) return missing;
  if (!facts.amx_bf16) return "the CPU lacks AMX-TILE or AMX-BF16";
  if (!has_state(facts, kTileState)) return "the operating system does not save AMX tile state";
  if (!facts.amx_permitted) return "the kernel denied the use of AMX tiles";
  return {};
}

// On the Intel CPUs measured, vdpbf16ps runs at half the rate of float32 FMA; on AMD it runs at twice that
// rate.
bool bf16_dot_is_slow(const CpuFacts& facts) { return facts.vendor == "GenuineIntel"; }

void append_reason(std::string& reasons, IsaLevel level, std::string_view reason) {
  if (!reasons.empty()) reasons += "; ";
  reasons += fmt::format("{}: {}", to_string(level), reason);
}

}  // namespace

std::string_view to_string(IsaLevel level) {
  switch (level) {
    case IsaLevel::kScalar:
      return "scalar";
    case IsaLevel::kAvx2:
      return "avx2";
    case IsaLevel::kAvx512:
      return "avx512";
    case IsaLevel::kAvx512Bf16:
      return "avx512_bf16";
    case IsaLevel::kAmxBf16:
      return "amx_bf16";
  }
  return "unknown";
}

CpuFacts read_cpu_facts() {
  CpuFacts facts;
  const Registers vendor = cpuid(0, 0);
  const std::array<uint32_t, 3> text = {vendor.ebx, vendor.edx, vendor.ecx};
  facts.vendor.assign(reinterpret_cast<const char*>(text.data()), sizeof text);

  const Registers base = cpuid(1, 0);
  const Registers extended = cpuid(7, 0);
  const Registers extended1 = cpuid(7, 1);
  const bool fma = bit(base.ecx, 12);
  const bool f16c = bit(base.ecx, 29);
  const bool bmi2 = bit(extended.ebx, 8);
  facts.avx2 = bit(extended.ebx, 5) && fma && f16c && bmi2;
  facts.avx512 = bit(extended.ebx, 16) && bit(extended.ebx, 17) && bit(extended.ebx, 28) &&
                 bit(extended.ebx, 30) && bit(extended.ebx, 31);
  facts.avx512_bf16 = bit(extended1.eax, 5);
  facts.amx_bf16 = bit(extended.edx, 22) && bit(extended.edx, 24);
  const bool osxsave = bit(base.ecx, 27);
  if (osxsave) facts.xcr0 = read_xcr0();
  if (facts.amx_bf16 && has_state(facts, kTileState)) facts.amx_permitted = request_amx_permission();
  return facts;
}

std::string missing_for(IsaLevel level, const CpuFacts& facts) {
  switch (level) {
    case IsaLevel::kScalar:
      return {};
    case IsaLevel::kAvx2:
      return missing_avx2(facts);
    case IsaLevel::kAvx512:
      return missing_avx512(facts);
    case IsaLevel::kAvx512Bf16:
      return missing_avx512_bf16(facts);
    case IsaLevel::kAmxBf16:
      return missing_amx_bf16(facts);
  }
  return "no such level";
}

Result<IsaChoice> choose_isa(std::string_view requested, const CpuFacts& facts) {
  IsaChoice choice;
  if (requested == "auto") {
    for (IsaLevel level : kLevels) {
      if (std::string missing = missing_for(level, facts); !missing.empty()) {
        append_reason(choice.why, level, missing);
      } else if (level == IsaLevel::kAvx512Bf16 && bf16_dot_is_slow(facts)) {
        append_reason(choice.why, level, "slower than float32 FMA on this vendor's CPUs");
      } else {
        choice.level = level;
        break;
      }
    }
    return choice;
  }
  for (IsaLevel level : kLevels) {
    if (requested != to_string(level)) continue;
    if (std::string missing = missing_for(level, facts); !missing.empty()) {
      return error(StatusCode::kUnavailable, "isa: must be a level this machine offers, got {}: {}",
                   requested, missing);
    }
    choice.level = level;
    choice.why = "forced by the isa option";
    return choice;
  }
  return invalid("isa: must be auto, amx_bf16, avx512_bf16, avx512, avx2 or scalar, got {}", requested);
}

}  // namespace mlaprefill::cpu
