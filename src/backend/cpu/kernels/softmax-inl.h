// One step of the online softmax on a block of scores.
#pragma once

#include "backend/cpu/kernels/convert-inl.h"

namespace mlaprefill::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kMinusInfinity = -__builtin_inff();

/// 2^f for f in [0, 1]: minimax in relative error (8.3e-8) among polynomials with p(0) = 1.
HWY_INLINE FloatVec exp2_fraction(FloatVec f) {
  FloatVec p = hn::Set(kFloats, 0.00186713005f);
  p = hn::MulAdd(p, f, hn::Set(kFloats, 0.00901703071f));
  p = hn::MulAdd(p, f, hn::Set(kFloats, 0.0557999127f));
  p = hn::MulAdd(p, f, hn::Set(kFloats, 0.240164444f));
  p = hn::MulAdd(p, f, hn::Set(kFloats, 0.693151295f));
  return hn::MulAdd(p, f, hn::Set(kFloats, 1.0f));
}

/// 2^y for y <= 0 or slightly above. -inf gives 0, NaN gives NaN.
HWY_INLINE FloatVec exp2(FloatVec y) {
#if HWY_TARGET == HWY_AVX3
  constexpr int kFractionOverFloor = 0x09;
  const FloatVec p = exp2_fraction(FloatVec{_mm512_reduce_ps(y.raw, kFractionOverFloor)});
  return FloatVec{_mm512_scalef_ps(p.raw, y.raw)};
#else
  const FloatVec whole = hn::Floor(y);
  const FloatVec p = exp2_fraction(hn::Sub(y, whole));
  // Adding 1.5 * 2^23 leaves the integer in the low mantissa bits.
  const WordVec integer = hn::BitCast(kWords, hn::Add(whole, hn::Set(kFloats, 12582912.0f)));
  const WordVec scaled = hn::Add(hn::BitCast(kWords, p), hn::ShiftLeft<23>(integer));
  const auto underflows = hn::Lt(y, hn::Set(kFloats, -126.0f));
  return hn::IfThenZeroElse(underflows, hn::BitCast(kFloats, scaled));
#endif
}

/// Hides the first `count` < kLanes scores, or those behind them.
HWY_INLINE void hide_first(float* scores, int64_t count) {
  const auto hidden = hn::FirstN(kFloats, static_cast<size_t>(count));
  store(hn::IfThenElse(hidden, hn::Set(kFloats, kMinusInfinity), load(scores)), scores);
}
HWY_INLINE void hide_from(float* scores, int64_t count) {
  const auto visible = hn::FirstN(kFloats, static_cast<size_t>(count));
  store(hn::IfThenElse(visible, load(scores), hn::Set(kFloats, kMinusInfinity)), scores);
}

template <typename Storage>
HWY_INLINE void zero(Storage* p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += kLanes) OperandIo<Storage>::store(hn::Zero(kFloats), p + i);
}

HWY_INLINE float row_max(const float* scores, int64_t begin, int64_t end) {
  FloatVec first = load(scores + begin);
  FloatVec second = first;
  int64_t i = begin;
  for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
    first = hn::Max(first, load(scores + i));
    second = hn::Max(second, load(scores + i + kLanes));
  }
  if (i < end) first = hn::Max(first, load(scores + i));
  return hn::GetLane(hn::MaxOfLanes(kFloats, hn::Max(first, second)));
}

/// Writes p = 2^(factor * score - shift) and returns the sum of the values before they are rounded to
/// Storage.
template <typename Storage>
HWY_INLINE float exponentiate(const float* scores, int64_t begin, int64_t end, float factor, float shift,
                              Storage* p) {
  const FloatVec factors = hn::Set(kFloats, factor);
  const FloatVec shifts = hn::Set(kFloats, shift);
  FloatVec first = hn::Zero(kFloats);
  FloatVec second = hn::Zero(kFloats);
  int64_t i = begin;
  for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
    const FloatVec a = exp2(hn::MulSub(load(scores + i), factors, shifts));
    const FloatVec b = exp2(hn::MulSub(load(scores + i + kLanes), factors, shifts));
    first = hn::Add(first, a);
    second = hn::Add(second, b);
    OperandIo<Storage>::store_two(a, b, p + i);
  }
  if (i < end) {
    const FloatVec a = exp2(hn::MulSub(load(scores + i), factors, shifts));
    first = hn::Add(first, a);
    OperandIo<Storage>::store(a, p + i);
  }
  return hn::GetLane(hn::SumOfLanes(kFloats, hn::Add(first, second)));
}

HWY_INLINE void scale_row(float* out, int64_t columns, float factor) {
  const FloatVec factors = hn::Set(kFloats, factor);
  for (int64_t i = 0; i < columns; i += kLanes) store(hn::Mul(load(out + i), factors), out + i);
}

/// No visible score is above -inf: nothing is added, unless one is NaN, which no maximum shows.
HWY_INLINE void take_no_maximum(const SoftmaxArgs& args, int64_t row, const float* scores, int64_t begin,
                                int64_t end) {
  float nan = 0.0f;
  for (int64_t i = begin; i < end; ++i) {
    if (__builtin_isnan(scores[i])) nan = scores[i];
  }
  if (!__builtin_isnan(nan)) return;
  args.sum[row] = nan;
  float* out = args.out + row * args.out_stride;
  for (int64_t i = 0; i < args.out_columns; ++i) out[i] = nan;
}

/// Visible scores of a row, widened to whole vectors.
struct VisibleVectors {
  int64_t begin, end;
};

HWY_INLINE VisibleVectors visible_vectors(const SoftmaxArgs& args, int64_t row) {
  return {args.visible_begin[row] / kLanes * kLanes, (args.visible_end[row] + kLanes - 1) / kLanes * kLanes};
}

/// Raises the running maximum to the row's and rescales what was summed so far. Returns the base-2 exponent
/// of the new maximum, NaN where the row has no score to add.
HWY_INLINE float raise_maximum(const SoftmaxArgs& args, int64_t row) {
  const int64_t begin = args.visible_begin[row], end = args.visible_end[row];
  if (begin >= end) return __builtin_nanf("");
  float* scores = args.scores + row * args.score_stride;
  const VisibleVectors vectors = visible_vectors(args, row);
  if (vectors.begin < begin) hide_first(scores + vectors.begin, begin - vectors.begin);
  if (end < vectors.end) hide_from(scores + vectors.end - kLanes, kLanes - (vectors.end - end));

  const float old_max = args.max[row];
  const float block_max = row_max(scores, vectors.begin, vectors.end) * args.scale;
  const float new_max = block_max > old_max ? block_max : old_max;
  if (!(new_max > kMinusInfinity)) {
    take_no_maximum(args, row, scores, begin, end);
    return __builtin_nanf("");
  }
  const float shift = new_max * kLog2E;
  if (new_max > old_max) {
    args.max[row] = new_max;
    if (old_max > kMinusInfinity) {
      const float shrink = hn::GetLane(exp2(hn::Set(kFloats, old_max * kLog2E - shift)));
      args.sum[row] *= shrink;
      scale_row(args.out + row * args.out_stride, args.out_columns, shrink);
    }
  }
  return shift;
}

template <typename Storage>
HWY_INLINE void add_probabilities(const SoftmaxArgs& args, int64_t row, float shift) {
  Storage* p = static_cast<Storage*>(args.p) + row * args.p_stride;
  if (__builtin_isnan(shift)) return zero(p, args.column_begin[row], args.column_end[row]);
  const float* scores = args.scores + row * args.score_stride;
  const VisibleVectors vectors = visible_vectors(args, row);
  args.sum[row] += exponentiate(scores, vectors.begin, vectors.end, args.scale * kLog2E, shift, p);
  zero(p, args.column_begin[row], vectors.begin);
  zero(p, vectors.end, args.column_end[row]);
}

/// Rows whose maxima are found before their exponentials: no exponential waits for the reduction of its own
/// row, and the scores stay in the first-level cache in between.
constexpr int64_t kSoftmaxRows = 16;

template <typename Storage>
void softmax(const SoftmaxArgs& args) {
  for (int64_t first = 0; first < args.rows; first += kSoftmaxRows) {
    const int64_t rows = args.rows - first < kSoftmaxRows ? args.rows - first : kSoftmaxRows;
    float shifts[kSoftmaxRows];
    for (int64_t i = 0; i < rows; ++i) shifts[i] = raise_maximum(args, first + i);
    for (int64_t i = 0; i < rows; ++i) add_probabilities<Storage>(args, first + i, shifts[i]);
  }
}

void do_nothing() {}

}  // namespace
}  // namespace mlaprefill::cpu
