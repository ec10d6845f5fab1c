// Vectors of the target a kernel file is compiled for, and conversions among the float formats.
// Included by kernel files alone; everything is in an unnamed namespace, so nothing is shared between them.
#pragma once

#if defined(MLAPREFILL_SCALAR_KERNELS)
#define HWY_COMPILE_ONLY_SCALAR
#endif
#define HWY_DISABLE_PCLMUL_AES
#include <hwy/highway.h>

#include "backend/cpu/kernels/kernels.h"
#include "core/float_formats.h"

// Loops over registers have constant bounds and must be unrolled for their arrays to stay there.
#define MLAPREFILL_UNROLL _Pragma("GCC unroll 8")

namespace mlaprefill::cpu {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using WordTag = hn::RebindToUnsigned<FloatTag>;
using HalfTag = hn::Rebind<uint16_t, FloatTag>;
using FloatVec = hn::VFromD<FloatTag>;
using WordVec = hn::VFromD<WordTag>;

constexpr FloatTag kFloats;
constexpr WordTag kWords;
constexpr HalfTag kHalves;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(FloatTag()));
constexpr bool kScalarTarget = kLanes == 1;

constexpr uint32_t kExponentMask = 0x7F800000U;

HWY_INLINE FloatVec load(const float* p) { return hn::LoadU(kFloats, p); }
HWY_INLINE void store(FloatVec v, float* p) { hn::StoreU(v, kFloats, p); }

/// Rows of the caller's tensors are often pages apart, where no hardware prefetcher follows: kernels that
/// walk them ask for the row so many rows ahead. An address, not an access: it may lie past the end.
constexpr int64_t kPrefetchRows = 24;

template <int kWrite = 0>
HWY_INLINE void prefetch_row(const void* row, int64_t offset_bytes, int64_t bytes) {
  constexpr int kSecondLevel = 2;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(offset_bytes);
  for (uintptr_t line = begin; line < begin + static_cast<uintptr_t>(bytes); line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(line), kWrite, kSecondLevel);
  }
}

/// bf16 bits, rounded to nearest even, in the upper half of each word; NaN stays NaN.
HWY_INLINE WordVec bf16_in_upper_half(FloatVec v) {
  const WordVec bits = hn::BitCast(kWords, v);
  const WordVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kWords, 1U));
  const WordVec rounded = hn::Add(hn::Add(bits, hn::Set(kWords, 0x7FFFU)), odd);
  const WordVec quiet = hn::Or(bits, hn::Set(kWords, 0x400000U));
  const auto is_nan = hn::RebindMask(kWords, hn::IsNaN(v));
  return hn::And(hn::IfThenElse(is_nan, quiet, rounded), hn::Set(kWords, 0xFFFF0000U));
}

HWY_INLINE FloatVec round_to_bf16(FloatVec v) { return hn::BitCast(kFloats, bf16_in_upper_half(v)); }

HWY_INLINE FloatVec load_bf16(const uint16_t* p) {
  return hn::BitCast(kFloats, hn::ShiftLeft<16>(hn::PromoteTo(kWords, hn::LoadU(kHalves, p))));
}
HWY_INLINE void store_bf16(FloatVec v, uint16_t* p) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(v.raw));
#else
  hn::StoreU(hn::DemoteTo(kHalves, hn::BitCast(hn::RebindToSigned<WordTag>(),
                                               hn::ShiftRight<16>(bf16_in_upper_half(v)))),
             kHalves, p);
#endif
}

// Highway's scalar float16 conversion truncates; the scalar target uses the library's own.
HWY_INLINE FloatVec load_f16(const uint16_t* p) {
  if constexpr (kScalarTarget) {
    return hn::Set(kFloats, float_from_f16(*p));
  } else {
    const hn::Rebind<hwy::float16_t, FloatTag> f16;
    return hn::PromoteTo(kFloats, hn::LoadU(f16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
}
HWY_INLINE void store_f16(FloatVec v, uint16_t* p) {
  if constexpr (kScalarTarget) {
    *p = f16_from_float(hn::GetLane(v));
  } else {
    const hn::Rebind<hwy::float16_t, FloatTag> f16;
    hn::StoreU(hn::DemoteTo(f16, v), f16, reinterpret_cast<hwy::float16_t*>(p));
  }
}
HWY_INLINE FloatVec round_to_f16(FloatVec v) {
  if constexpr (kScalarTarget) {
    return hn::Set(kFloats, float_from_f16(f16_from_float(hn::GetLane(v))));
  } else {
    const hn::Rebind<hwy::float16_t, FloatTag> f16;
    return hn::PromoteTo(kFloats, hn::DemoteTo(f16, v));
  }
}

HWY_INLINE FloatVec round_to(FloatVec v, DType rounding) {
  if (rounding == DType::kBF16) return round_to_bf16(v);
  if (rounding == DType::kF16) return round_to_f16(v);
  return v;
}

/// Collects whether any value seen was infinite or NaN.
class FiniteCheck {
 public:
  HWY_INLINE void see(FloatVec v) {
    largest_ = hn::Max(largest_, hn::And(hn::BitCast(kWords, v), hn::Set(kWords, 0x7FFFFFFFU)));
  }
  HWY_INLINE bool all_finite() const {
    return hn::AllTrue(kWords, hn::Lt(largest_, hn::Set(kWords, kExponentMask)));
  }

 private:
  WordVec largest_ = hn::Zero(kWords);
};

}  // namespace
}  // namespace mlaprefill::cpu
