// wgmma m64nNk16 with 16-bit operands and float32 accumulators, and what keeps its registers in order.
// Accumulator d[i] of a thread: row 16 * warp + lane / 4 + 8 * ((i / 2) % 2), column 8 * (i / 4) + 2 * (lane
// % 4) + i % 2.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backend/sm90/attention_launch.h"

namespace mlaprefill::sm90 {

/// The changing half of the descriptor of a shared memory operand made of 64-column panels: 128-byte rows,
/// 128-byte swizzle. A K-major operand (Q, K) ignores `panel_bytes`; for V, read across its rows, it is the
/// distance to the next 64 columns.
__device__ __forceinline__ uint32_t operand(uint32_t address, uint32_t panel_bytes) {
  constexpr uint32_t kAddressMask = 0x3FFFF;
  return panel_bytes >> 4 << 16 | (address & kAddressMask) >> 4;
}

/// What an operand grows by when its address grows by `bytes`.
__device__ constexpr uint32_t operand_step(uint32_t bytes) { return bytes >> 4; }

__device__ __forceinline__ uint64_t descriptor(uint32_t operand) {
  constexpr uint32_t kSwizzle128 = uint32_t{1} << 30;
  constexpr uint32_t kEightRows = 1024 >> 4;
  uint64_t result;
  asm("mov.b64 %0, {%1, %2};" : "=l"(result) : "r"(operand), "n"(kSwizzle128 | kEightRows));
  return result;
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of these registers across this point.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

/// Two float32 values as a packed 16-bit pair, `low` in the low half.
template <Element kElement>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (kElement == Element::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

template <Element kElement>
__device__ __forceinline__ float unpack(uint16_t bits) {
  if constexpr (kElement == Element::kBF16) return __uint_as_float(uint32_t{bits} << 16);
  return __half2float(__ushort_as_half(bits));
}

// The instruction's register lists, eight accumulators at a time. Accumulators are %0.., then A, B and the
// accumulate flag.
#define MLAPREFILL_D32                                                                                     \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27," \
  "%28,%29,%30,%31"
#define MLAPREFILL_D64                                                                                    \
  MLAPREFILL_D32                                                                                          \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56," \
  "%57,%58,%59,%60,%61,%62,%63"
#define MLAPREFILL_D128                                                                                   \
  MLAPREFILL_D64                                                                                          \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88," \
  "%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,"   \
  "%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define MLAPREFILL_ACC8(d, i)                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define MLAPREFILL_ACC32(d, i) \
  MLAPREFILL_ACC8(d, i), MLAPREFILL_ACC8(d, i + 8), MLAPREFILL_ACC8(d, i + 16), MLAPREFILL_ACC8(d, i + 24)
#define MLAPREFILL_ACC64(d) MLAPREFILL_ACC32(d, 0), MLAPREFILL_ACC32(d, 32)
#define MLAPREFILL_ACC128(d) MLAPREFILL_ACC64(d), MLAPREFILL_ACC32(d, 64), MLAPREFILL_ACC32(d, 96)

// A from shared memory, both operands K-major.
#define MLAPREFILL_WGMMA_SHARED(shape, type, list, outputs, a, b, flag)                                      \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " flag ", 0;\n\twgmma.mma_async.sync.aligned.m64" shape \
               "k16.f32." type "." type " {" list "}, " a ", " b ", p, 1, 1, 0, 0;\n\t}"                     \
               : outputs                                                                                     \
               : "l"(a_descriptor), "l"(b_descriptor), "r"(static_cast<int>(accumulate)))

// A from registers; `b_major` is 0 for a K-major B, 1 for a row-major one.
#define MLAPREFILL_WGMMA_REGISTERS(shape, type, list, outputs, a, b, flag, b_major)                          \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " flag ", 0;\n\twgmma.mma_async.sync.aligned.m64" shape \
               "k16.f32." type "." type " {" list "}, " a ", " b ", p, 1, 1, " b_major ";\n\t}"              \
               : outputs                                                                                     \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b_descriptor), "r"(static_cast<int>(accumulate)))

/// d[64 x 64] (+)= Q K^T of one k16 step, Q in shared memory.
template <Element kElement>
__device__ __forceinline__ void wgmma_shared(float (&d)[32], uint64_t a_descriptor, uint64_t b_descriptor,
                                             bool accumulate) {
  if constexpr (kElement == Element::kBF16) {
    MLAPREFILL_WGMMA_SHARED("n64", "bf16", MLAPREFILL_D32, MLAPREFILL_ACC32(d, 0), "%32", "%33", "%34");
  } else {
    MLAPREFILL_WGMMA_SHARED("n64", "f16", MLAPREFILL_D32, MLAPREFILL_ACC32(d, 0), "%32", "%33", "%34");
  }
}

/// d[64 x 64] (+)= Q K^T of one k16 step, Q in registers.
template <Element kElement, bool kRowMajorB>
__device__ __forceinline__ void wgmma_registers(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint64_t b_descriptor, bool accumulate) {
  static_assert(!kRowMajorB);
  if constexpr (kElement == Element::kBF16) {
    MLAPREFILL_WGMMA_REGISTERS("n64", "bf16", MLAPREFILL_D32, MLAPREFILL_ACC32(d, 0), "{%32,%33,%34,%35}",
                               "%36", "%37", "0");
  } else {
    MLAPREFILL_WGMMA_REGISTERS("n64", "f16", MLAPREFILL_D32, MLAPREFILL_ACC32(d, 0), "{%32,%33,%34,%35}",
                               "%36", "%37", "0");
  }
}

/// d[64 x 256] (+)= P V of one k16 step, P in registers, V row-major.
template <Element kElement, bool kRowMajorB>
__device__ __forceinline__ void wgmma_registers(float (&d)[128], uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint64_t b_descriptor, bool accumulate) {
  static_assert(kRowMajorB);
  if constexpr (kElement == Element::kBF16) {
    MLAPREFILL_WGMMA_REGISTERS("n256", "bf16", MLAPREFILL_D128, MLAPREFILL_ACC128(d), "{%128,%129,%130,%131}",
                               "%132", "%133", "1");
  } else {
    MLAPREFILL_WGMMA_REGISTERS("n256", "f16", MLAPREFILL_D128, MLAPREFILL_ACC128(d), "{%128,%129,%130,%131}",
                               "%132", "%133", "1");
  }
}

/// d[64 x 128] (+)= A B of one k16 step, A in registers, B K-major (K) or row-major (V).
template <Element kElement, bool kRowMajorB>
__device__ __forceinline__ void wgmma_registers(float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint64_t b_descriptor, bool accumulate) {
  if constexpr (kElement == Element::kBF16 && kRowMajorB) {
    MLAPREFILL_WGMMA_REGISTERS("n128", "bf16", MLAPREFILL_D64, MLAPREFILL_ACC64(d), "{%64,%65,%66,%67}",
                               "%68", "%69", "1");
  } else if constexpr (kElement == Element::kBF16) {
    MLAPREFILL_WGMMA_REGISTERS("n128", "bf16", MLAPREFILL_D64, MLAPREFILL_ACC64(d), "{%64,%65,%66,%67}",
                               "%68", "%69", "0");
  } else if constexpr (kRowMajorB) {
    MLAPREFILL_WGMMA_REGISTERS("n128", "f16", MLAPREFILL_D64, MLAPREFILL_ACC64(d), "{%64,%65,%66,%67}", "%68",
                               "%69", "1");
  } else {
    MLAPREFILL_WGMMA_REGISTERS("n128", "f16", MLAPREFILL_D64, MLAPREFILL_ACC64(d), "{%64,%65,%66,%67}", "%68",
                               "%69", "0");
  }
}

#undef MLAPREFILL_D32
#undef MLAPREFILL_D64
#undef MLAPREFILL_D128
#undef MLAPREFILL_ACC8
#undef MLAPREFILL_ACC32
#undef MLAPREFILL_ACC64
#undef MLAPREFILL_ACC128
#undef MLAPREFILL_WGMMA_SHARED
#undef MLAPREFILL_WGMMA_REGISTERS

}  // namespace mlaprefill::sm90
