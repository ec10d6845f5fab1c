// The register-blocked product of row-major rows with a panel of 64 columns, for float32 on any target and,
// with other lane operations, for bf16 pairs.
#pragma once

#include "backend/cpu/kernels/vector-inl.h"

namespace mlaprefill::cpu {
namespace {

struct F32Lanes {
  static constexpr int64_t kElementsPerWord = 1;
  static HWY_INLINE FloatVec load_b(const uint32_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static HWY_INLINE FloatVec broadcast_a(const uint32_t* p) {
    return hn::Set(kFloats, *reinterpret_cast<const float*>(p));
  }
  static HWY_INLINE FloatVec multiply_add(FloatVec a, FloatVec b, FloatVec sum) {
    return hn::MulAdd(a, b, sum);
  }
};

// 6 x 4 vectors of sums, 4 of B and 1 of A fill the 32 registers of AVX-512; 6 x 2 fill the 16 of AVX2.
constexpr int kTileRows = kLanes == 1 ? 4 : 6;
constexpr int kTileVectors = kLanes == 8 ? 2 : 4;
constexpr int64_t kTileColumns = kTileVectors * kLanes;

template <class Lanes, int Rows, int Vectors>
HWY_INLINE void multiply_tile(const MultiplyArgs& args, int64_t row, int64_t column) {
  FloatVec sums[Rows][Vectors];
  float* c = args.c + row * args.c_stride + column;
  MLAPREFILL_UNROLL
  for (int r = 0; r < Rows; ++r) {
    MLAPREFILL_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      sums[r][v] = args.accumulate ? load(c + r * args.c_stride + v * kLanes) : hn::Zero(kFloats);
    }
  }
  for (int32_t s = 0; s < args.num_segments; ++s) {
    const MultiplyArgs::Segment& segment = args.segments[s];
    const int64_t stride = segment.a_stride / Lanes::kElementsPerWord;
    const int64_t words = segment.depth / Lanes::kElementsPerWord;
    const uint32_t* a = static_cast<const uint32_t*>(segment.a) + row * stride;
    const uint32_t* b = static_cast<const uint32_t*>(segment.b) + column;
    for (int64_t w = 0; w < words; ++w, b += kPanelColumns) {
      decltype(Lanes::load_b(b)) columns[Vectors];
      MLAPREFILL_UNROLL
      for (int v = 0; v < Vectors; ++v) columns[v] = Lanes::load_b(b + v * kLanes);
      MLAPREFILL_UNROLL
      for (int r = 0; r < Rows; ++r) {
        const auto left = Lanes::broadcast_a(a + r * stride + w);
        MLAPREFILL_UNROLL
        for (int v = 0; v < Vectors; ++v) {
          sums[r][v] = Lanes::multiply_add(left, columns[v], sums[r][v]);
        }
      }
    }
  }
  MLAPREFILL_UNROLL
  for (int r = 0; r < Rows; ++r) {
    MLAPREFILL_UNROLL
    for (int v = 0; v < Vectors; ++v) store(sums[r][v], c + r * args.c_stride + v * kLanes);
  }
}

template <class Lanes, int Rows>
void multiply_strip(const MultiplyArgs& args, int64_t row) {
  int64_t column = 0;
  for (; column + kTileColumns <= args.columns; column += kTileColumns) {
    multiply_tile<Lanes, Rows, kTileVectors>(args, row, column);
  }
  const int64_t left = args.columns - column;
  if (left > kTileColumns / 2) {
    multiply_tile<Lanes, Rows, kTileVectors>(args, row, column);
  } else if (left > 0) {
    multiply_tile<Lanes, Rows, kTileVectors / 2>(args, row, column);
  }
}

template <class Lanes>
void multiply_rows(const MultiplyArgs& args) {
  int64_t row = 0;
  for (; row + kTileRows <= args.rows; row += kTileRows) multiply_strip<Lanes, kTileRows>(args, row);
  switch (args.rows - row) {
    case 1:
      return multiply_strip<Lanes, 1>(args, row);
    case 2:
      return multiply_strip<Lanes, 2>(args, row);
    case 3:
      return multiply_strip<Lanes, 3>(args, row);
    case 4:
      return multiply_strip<Lanes, 4>(args, row);
    case 5:
      return multiply_strip<Lanes, 5>(args, row);
    default:
      return;
  }
}

// Panel rows that stay in a first-level cache of 48 KiB while every strip of rows passes over them: 32 KiB.
constexpr int64_t kCachedWords = 128;

/// Deep products are cut in depth and summed up in C, which is exact: C holds what the registers held.
template <class Lanes>
void multiply(const MultiplyArgs& args) {
  int64_t depth = 0;
  for (int32_t s = 0; s < args.num_segments; ++s) depth += args.segments[s].depth;
  constexpr int64_t kDepth = kCachedWords * Lanes::kElementsPerWord;
  if (depth <= kDepth) return multiply_rows<Lanes>(args);

  MultiplyArgs part = args;
  part.num_segments = 1;
  for (int32_t s = 0; s < args.num_segments; ++s) {
    const MultiplyArgs::Segment& whole = args.segments[s];
    for (int64_t begin = 0; begin < whole.depth; begin += kDepth) {
      const int64_t left = whole.depth - begin;
      const auto* a = static_cast<const uint32_t*>(whole.a) + begin / Lanes::kElementsPerWord;
      const auto* b = static_cast<const uint32_t*>(whole.b) + begin / Lanes::kElementsPerWord * kPanelColumns;
      part.segments[0] = {a, b, whole.a_stride, left < kDepth ? left : kDepth};
      multiply_rows<Lanes>(part);
      part.accumulate = true;
    }
  }
}

}  // namespace
}  // namespace mlaprefill::cpu
