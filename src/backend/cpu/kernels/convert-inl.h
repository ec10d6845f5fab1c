// Rows of any float format in, rows of the operand type out; and the finished output back to its format.
#pragma once

#include "backend/cpu/kernels/vector-inl.h"

namespace mlaprefill::cpu {
namespace {

/// Reads and writes one operand element or vector; specialised by the operand's storage type.
template <typename Storage>
struct OperandIo;

template <>
struct OperandIo<float> {
  static HWY_INLINE void store(FloatVec v, float* p) { hn::StoreU(v, kFloats, p); }
  static HWY_INLINE void store_two(FloatVec a, FloatVec b, float* p) {
    store(a, p);
    store(b, p + kLanes);
  }
  static HWY_INLINE void store_one(float v, float* p) { *p = v; }
  static constexpr DType kDType = DType::kF32;
};

template <>
struct OperandIo<uint16_t> {
  static HWY_INLINE void store(FloatVec v, uint16_t* p) { store_bf16(v, p); }
  static HWY_INLINE void store_two(FloatVec a, FloatVec b, uint16_t* p) {
#if defined(__AVX512BF16__)
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b.raw, a.raw));
#else
    store(a, p);
    store(b, p + kLanes);
#endif
  }
  static HWY_INLINE void store_one(float v, uint16_t* p) { *p = bf16_from_float(v); }
  static constexpr DType kDType = DType::kBF16;
};

constexpr int64_t element_bytes(DType dtype) {
  if (dtype == DType::kF32) return 4;
  return dtype == DType::kF8E4M3 ? 1 : 2;
}

template <typename T>
HWY_INLINE void copy(const T* from, T* to, int64_t count) {
  __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

float round_one(float value, DType rounding) {
  if (rounding == DType::kBF16) return float_from_bf16(bf16_from_float(value));
  if (rounding == DType::kF16) return float_from_f16(f16_from_float(value));
  return value;
}

/// Vector and single-element reads of each source format.
struct F32Source {
  const float* p;
  HWY_INLINE FloatVec vector(int64_t i) const { return load(p + i); }
  float one(int64_t i) const { return p[i]; }
};
struct F16Source {
  const uint16_t* p;
  HWY_INLINE FloatVec vector(int64_t i) const { return load_f16(p + i); }
  float one(int64_t i) const { return float_from_f16(p[i]); }
};
struct Bf16Source {
  const uint16_t* p;
  HWY_INLINE FloatVec vector(int64_t i) const { return load_bf16(p + i); }
  float one(int64_t i) const { return float_from_bf16(p[i]); }
};
struct F8Source {
  const uint8_t* p;
  const float* values;
  HWY_INLINE FloatVec vector(int64_t i) const {
    HWY_ALIGN float lanes[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = values[p[i + lane]];
    return hn::Load(kFloats, lanes);
  }
  float one(int64_t i) const { return values[p[i]]; }
};

template <typename Storage, typename Source>
HWY_INLINE void convert_row(const Source& source, const ConvertArgs& args, Storage* target) {
  const FloatVec factor = hn::Set(kFloats, args.factor);
  // Storing rounds too, and the factor is 1, -1 or 0.
  const DType rounding = args.rounding == OperandIo<Storage>::kDType ? DType::kF32 : args.rounding;
  const auto converted = [&](int64_t i)
                             HWY_ATTR { return hn::Mul(round_to(source.vector(i), rounding), factor); };
  int64_t i = 0;
  for (; i + 2 * kLanes <= args.columns; i += 2 * kLanes) {
    OperandIo<Storage>::store_two(converted(i), converted(i + kLanes), target + i);
  }
  for (; i + kLanes <= args.columns; i += kLanes) OperandIo<Storage>::store(converted(i), target + i);
  for (; i < args.columns; ++i) {
    OperandIo<Storage>::store_one(round_one(source.one(i), args.rounding) * args.factor, target + i);
  }
}

/// Converting again what already is in the operand type changes nothing.
template <typename Storage>
bool is_plain_copy(const ConvertArgs& args) {
  return args.source_dtype == OperandIo<Storage>::kDType && args.factor == 1.0f &&
         (args.rounding == DType::kF32 || args.rounding == args.source_dtype);
}

template <typename Storage>
void convert_rows(const ConvertArgs& args) {
  const bool plain_copy = is_plain_copy<Storage>(args);
  const int64_t source_bytes = element_bytes(args.source_dtype);
  for (int64_t row = 0; row < args.rows; ++row) {
    Storage* target = static_cast<Storage*>(args.target) + row * args.target_stride;
    const int64_t offset = row * args.source_stride;
    const uint16_t* halves = static_cast<const uint16_t*>(args.source) + offset;
    prefetch_row(static_cast<const char*>(args.source) + offset * source_bytes,
                 kPrefetchRows * args.source_stride * source_bytes, args.columns * source_bytes);
    if (plain_copy) {
      copy(static_cast<const Storage*>(args.source) + offset, target, args.columns);
    } else if (args.source_dtype == DType::kF32) {
      convert_row(F32Source{static_cast<const float*>(args.source) + offset}, args, target);
    } else if (args.source_dtype == DType::kF16) {
      convert_row(F16Source{halves}, args, target);
    } else if (args.source_dtype == DType::kBF16) {
      convert_row(Bf16Source{halves}, args, target);
    } else {
      convert_row(F8Source{static_cast<const uint8_t*>(args.source) + offset, args.f8_values}, args, target);
    }
    for (int64_t i = args.columns; i < args.padded_columns; ++i) target[i] = Storage{0};
  }
}

template <typename Element, typename Store>
HWY_INLINE void finish_rows(const FinishArgs& args, const Store& store_vector) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Element));
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* out = args.out + row * args.out_stride;
    Element* target = static_cast<Element*>(args.target) + row * args.target_stride;
    const FloatVec factor = hn::Set(kFloats, args.factors[row]);
    prefetch_row<1>(target, kPrefetchRows * args.target_stride * kBytes, args.columns * kBytes);
    for (int64_t i = 0; i < args.columns; i += kLanes) {
      store_vector(hn::Mul(load(out + i), factor), target + i);
    }
  }
}

void finish(const FinishArgs& args) {
  if (args.target_dtype == DType::kF32) {
    finish_rows<float>(args, [](FloatVec v, float* p) HWY_ATTR { store(v, p); });
  } else if (args.target_dtype == DType::kF16) {
    finish_rows<uint16_t>(args, [](FloatVec v, uint16_t* p) HWY_ATTR { store_f16(v, p); });
  } else {
    finish_rows<uint16_t>(args, [](FloatVec v, uint16_t* p) HWY_ATTR { store_bf16(v, p); });
  }
}

}  // namespace
}  // namespace mlaprefill::cpu
