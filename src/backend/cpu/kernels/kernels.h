// The interface between the driver, compiled for any x86-64, and the kernels, compiled once per ISA level.
//
// Everything a kernel multiplies is in the table's operand type (float32 or bf16) and accumulates in float32.
// The left factor is row-major; the right factor is a *panel* of 64 columns:
//   float32 [depth][64]          bf16 [depth / 2][64][2]
// so both are a matrix of 32-bit words with 64 columns, which is also what vdpbf16ps loads. For AMX it is cut
// into tiles of 16 x 16 words, the four of 16 rows one after the other.
//
// This header holds plain structs alone: kernel files must not instantiate inline functions that other files
// could pick up, compiled for instructions the machine may lack.
#pragma once

#include <cstdint>

#include "backend/cpu/isa_level.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill::cpu {

inline constexpr int64_t kPanelColumns = 64;

enum class Operand : uint8_t { kF32, kBF16 };

/// Strided rows of a float format, to be turned into row-major rows of the operand type.
struct ConvertArgs {
  const void* source = nullptr;
  DType source_dtype = DType::kF32;
  int64_t source_stride = 0;  ///< elements between rows
  int64_t rows = 0;
  int64_t columns = 0;
  const float* f8_values = nullptr;  ///< value of each of the 256 codes; for f8_e4m3 sources
  float factor = 1.0f;               ///< 1, -1 or 0
  DType rounding = DType::kF32;      ///< values are first rounded to this: f32 (not at all), f16 or bf16
  void* target = nullptr;
  int64_t target_stride = 0;   ///< elements between rows
  int64_t padded_columns = 0;  ///< columns from `columns` up to here become 0
};

/// C [rows, 64] (+)= sum over segments of A_s [rows, depth_s] * panel B_s [depth_s, 64].
/// Every element is one sum in depth order, whatever `rows` is.
struct MultiplyArgs {
  struct Segment {
    const void* a = nullptr;
    const void* b = nullptr;
    int64_t a_stride = 0;  ///< elements between rows of A
    int64_t depth = 0;     ///< multiple of depth_multiple
  };
  int64_t rows = 0;  ///< AMX computes up to the next multiple of row_multiple: A and C must have such rows
  Segment segments[2];
  int32_t num_segments = 1;
  int64_t columns = kPanelColumns;  ///< columns of C that are wanted; the others may or may not be computed
  bool accumulate = false;          ///< start from C instead of 0
  float* c = nullptr;
  int64_t c_stride = 0;
};

/// One step of the online softmax over a block of scores. Row i sees scores [visible_begin[i],
/// visible_end[i]); its probabilities go to columns [column_begin[i], column_end[i]) of p, 0 where not
/// visible. Both column bounds are multiples of trim_columns. Scores outside the visible range may be
/// anything and are overwritten.
struct SoftmaxArgs {
  int64_t rows = 0;
  float* scores = nullptr;
  int64_t score_stride = 0;
  void* p = nullptr;  ///< operand type; may be `scores` when that is float32
  int64_t p_stride = 0;
  const int32_t* visible_begin = nullptr;
  const int32_t* visible_end = nullptr;
  const int32_t* column_begin = nullptr;
  const int32_t* column_end = nullptr;
  float scale = 0.0f;    ///< positive; multiplies scores
  float* max = nullptr;  ///< running maximum of scaled scores, -inf at first
  float* sum = nullptr;  ///< running sum of exp(scaled score - max)
  float* out = nullptr;  ///< running un-normalised output, rescaled where the maximum grows
  int64_t out_stride = 0;
  int64_t out_columns = 0;  ///< multiple of 16
};

/// target row i = out row i * factors[i], in the target's dtype.
struct FinishArgs {
  int64_t rows = 0;
  int64_t columns = 0;  ///< multiple of 16
  const float* out = nullptr;
  int64_t out_stride = 0;
  const float* factors = nullptr;
  void* target = nullptr;
  DType target_dtype = DType::kF32;  ///< f32, f16 or bf16
  int64_t target_stride = 0;
};

struct KernelTable {
  IsaLevel level;
  Operand operand;
  int64_t operand_bytes;
  int64_t depth_multiple;  ///< GEMM depths are padded with zeros to a multiple of this many elements
  int64_t row_multiple;    ///< rows the GEMM writes at once even where fewer are asked for
  int64_t strip_rows;      ///< rows that share one causal trim
  int64_t trim_columns;    ///< keys a causal trim is a multiple of; divides 64
  int64_t query_block;     ///< preferred query rows of a block, a multiple of strip_rows
  int64_t key_block;       ///< preferred keys of a block, a multiple of 64

  /// Where element (depth, column) of a panel lies, in elements.
  int64_t (*panel_index)(int64_t depth, int64_t column);

  /// Bracket all other calls of a worker thread (AMX tile configuration).
  void (*enter)();
  void (*leave)();

  void (*convert_rows)(const ConvertArgs&);
  /// Panel of `columns` depth from `count` <= 64 operand rows: row r becomes panel column r; the rest become
  /// 0. `columns` is a multiple of 16.
  void (*pack_transposed)(const void* rows, int64_t row_stride, int64_t count, int64_t columns, void* panel);
  /// Panel of `padded_count` depth (even) from `count` operand rows of `columns` <= 64 columns; the rest
  /// become 0. Returns whether every element is finite.
  bool (*pack_rows)(const void* rows, int64_t row_stride, int64_t count, int64_t padded_count,
                    int64_t columns, void* panel);
  /// The same from `count` (even) float32 rows of 64 columns, each value first rounded to `rounding`
  /// (f32: only to the operand type).
  bool (*pack_product)(const float* rows, int64_t row_stride, int64_t count, int64_t padded_count,
                       DType rounding, void* panel);
  void (*multiply)(const MultiplyArgs&);
  void (*softmax)(const SoftmaxArgs&);
  void (*finish)(const FinishArgs&);
};

/// The kernels of a level for an operand type; levels without bf16 multiplication have no bf16 table
/// (nullptr).
const KernelTable* kernel_table(IsaLevel level, Operand operand);

/// The operand type a level multiplies bf16 inputs in.
Operand bf16_operand(IsaLevel level);

// One per kernel file.
extern const KernelTable kScalarF32Kernels;
extern const KernelTable kAvx2F32Kernels;
extern const KernelTable kAvx512F32Kernels;
extern const KernelTable kAvx512Bf16Kernels;
extern const KernelTable kAmxBf16Kernels;

}  // namespace mlaprefill::cpu
