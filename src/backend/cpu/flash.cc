#include "backend/cpu/flash.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/float_formats.h"
#include "core/tensor_access.h"

namespace mlaprefill::cpu {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr double kLn2 = 0.69314718055994530942;

}  // namespace

/// Query rows [row, row + rows) against keys [key, key + keys); keys is a multiple of 64 and may reach past
/// the end of the chunk into the zero padding of its last panel.
struct Flash::Block {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t key = 0;
  int64_t keys = 0;
  bool started = false;  ///< out_ holds these rows' sums so far
};

// The sign of the scale, and a scale of zero, go into the queries: exact, and the kernels see a positive
// scale.
float Flash::query_factor() const {
  if (shape_.softmax_scale == 0.0) return 0.0f;
  return shape_.softmax_scale < 0.0 ? -1.0f : 1.0f;
}

FlashQueries flash_queries(const ConstTensor& q, const Tensor& out, const LseView& lse, int64_t row,
                           int64_t rows, int64_t head) {
  FlashQueries queries;
  queries.rows = rows;
  queries.q = element_address(q, row, head);
  queries.q_dtype = q.dtype;
  queries.q_stride = q.stride[0];
  queries.out = element_address(out, row, head);
  queries.out_dtype = out.dtype;
  queries.out_stride = out.stride[0];
  queries.lse = lse;
  if (lse.data != nullptr) queries.lse.data += head * lse.head_stride + row * lse.token_stride;
  return queries;
}

void Flash::reserve(const FlashShape& shape, int64_t rows) {
  const KernelTable& kernels = *shape.kernels;
  const int64_t padded_rows = round_up(rows, kernels.row_multiple);
  const int64_t block_rows = std::min(padded_rows, kernels.query_block);

  visible_begin_ = visible_buffer_.reserve<int64_t>(2 * rows);
  visible_end_ = visible_begin_ + rows;
  out_stride_ = row_stride(shape.padded_v_columns(), 4);
  out_ = out_buffer_.reserve<float>(padded_rows * out_stride_);
  max_ = state_buffer_.reserve<float>(2 * rows);
  sum_ = max_ + rows;
  q_stride_ = row_stride(shape.padded_depth(0) + shape.padded_depth(1), kernels.operand_bytes);
  q_ = q_buffer_.reserve<std::byte>(padded_rows * q_stride_ * kernels.operand_bytes);
  score_stride_ = row_stride(shape.key_block, 4);
  scores_ = score_buffer_.reserve<float>(block_rows * score_stride_);
  if (kernels.operand == Operand::kF32) {
    p_ = reinterpret_cast<std::byte*>(scores_);
    p_stride_ = score_stride_;
  } else {
    p_stride_ = row_stride(shape.key_block, kernels.operand_bytes);
    p_ = p_buffer_.reserve<std::byte>(block_rows * p_stride_ * kernels.operand_bytes);
  }
  trims_ = trim_buffer_.reserve<int32_t>(4 * block_rows);
  const int64_t num_blocks = ceil_div(rows, kernels.query_block);
  started_ = started_buffer_.reserve<bool>(num_blocks);
}

void Flash::begin(const FlashShape& shape, const FlashQueries& queries) {
  shape_ = shape;
  queries_ = queries;
  begun_ = false;
  one_chunk_ = false;
  reserve(shape, queries.rows);
  std::fill_n(started_, ceil_div(queries.rows, shape.kernels->query_block), queries.resume);
}

void Flash::begin_rows(int64_t row, int64_t rows) {
  convert_queries(row, rows);
  if (!queries_.resume) {
    std::fill_n(max_ + row, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sum_ + row, rows, 0.0f);
    return;
  }
  for (int64_t i = row; i < row + rows; ++i) {
    std::memcpy(out(i), queries_.state_out + i * queries_.state_out_stride,
                static_cast<size_t>(shape_.v_columns) * sizeof(float));
  }
  std::memcpy(max_ + row, queries_.state_max + row, static_cast<size_t>(rows) * sizeof(float));
  std::memcpy(sum_ + row, queries_.state_sum + row, static_cast<size_t>(rows) * sizeof(float));
}

void Flash::convert_queries(int64_t row, int64_t rows) {
  const KernelTable& kernels = *shape_.kernels;
  const int64_t q_bytes = size_bytes(queries_.q_dtype);
  ConvertArgs args;
  args.source = static_cast<const std::byte*>(queries_.q) + row * queries_.q_stride * q_bytes;
  args.source_dtype = queries_.q_dtype;
  args.source_stride = queries_.q_stride;
  args.rows = rows;
  args.factor = query_factor();
  args.target = q(row);
  args.target_stride = q_stride_;
  for (int part = 0; part < 2; ++part) {
    if (shape_.depths[part] == 0) continue;
    args.columns = shape_.depths[part];
    args.padded_columns = shape_.padded_depth(part);
    kernels.convert_rows(args);
    args.source = static_cast<const std::byte*>(args.source) + args.columns * q_bytes;
    args.target = static_cast<std::byte*>(args.target) + args.padded_columns * kernels.operand_bytes;
  }
}

void Flash::attend(const KeyChunk& chunk) {
  if (!begun_) {
    one_chunk_ = chunk.key_end >= visible_end_[queries_.rows - 1];
    if (!one_chunk_) begin_rows(0, queries_.rows);
    begun_ = true;
  }
  const int64_t query_block = shape_.kernels->query_block;
  for (int64_t row = 0; row < queries_.rows; row += query_block) {
    const int64_t rows = std::min(query_block, queries_.rows - row);
    if (one_chunk_) begin_rows(row, rows);
    attend_rows(chunk, row, rows);
    if (one_chunk_) finish_rows(row, rows);
  }
}

void Flash::attend_rows(const KeyChunk& chunk, int64_t row, int64_t rows) {
  const int64_t first_key = std::max(visible_begin_[row], chunk.key_begin);
  const int64_t end_key = std::min(visible_end_[row + rows - 1], chunk.key_end);
  if (first_key >= end_key) return;
  bool& started = started_[row / shape_.kernels->query_block];
  const int64_t skipped = (first_key - chunk.key_begin) / kPanelColumns * kPanelColumns;
  Block block;
  block.row = row;
  block.rows = rows;
  for (block.key = chunk.key_begin + skipped; block.key < end_key; block.key += shape_.key_block) {
    block.keys = std::min(shape_.key_block, round_up(end_key - block.key, kPanelColumns));
    block.started = started;
    attend_block(chunk, block);
    started = true;
  }
}

void Flash::attend_block(const KeyChunk& chunk, const Block& block) {
  trim_strips(block);
  multiply_keys(chunk, block);
  take_softmax(block);
  if (needs_exact_values(chunk, block)) {
    if (!block.started) clear_output(block.row, block.rows);
    multiply_values_exactly(chunk, block);
  } else {
    multiply_values(chunk, block);
  }
}

/// Every row's visible scores within the block, and the columns any row of its strip sees.
void Flash::trim_strips(const Block& block) {
  int32_t* begin = trims_;
  int32_t* end = begin + block.rows;
  int32_t* column_begin = end + block.rows;
  int32_t* column_end = column_begin + block.rows;
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t row = block.row + i;
    begin[i] = static_cast<int32_t>(std::clamp<int64_t>(visible_begin_[row] - block.key, 0, block.keys));
    end[i] = static_cast<int32_t>(std::clamp<int64_t>(visible_end_[row] - block.key, 0, block.keys));
  }
  const auto trim = static_cast<int32_t>(shape_.kernels->trim_columns);
  for (int64_t i = 0; i < block.rows; i += shape_.kernels->strip_rows) {
    const int64_t strip_end = std::min(i + shape_.kernels->strip_rows, block.rows);
    int32_t first = begin[i] / trim * trim;
    const int32_t last = (end[strip_end - 1] + trim - 1) / trim * trim;
    first = std::min(first, last);
    std::fill(column_begin + i, column_begin + strip_end, first);
    std::fill(column_end + i, column_end + strip_end, last);
  }
}

/// First row after `row` whose strip sees other columns.
int64_t Flash::next_trim(const Block& block, int64_t row) const {
  const int32_t* column_begin = trims_ + 2 * block.rows;
  const int32_t* column_end = column_begin + block.rows;
  int64_t next = row;
  while (next < block.rows && column_begin[next] == column_begin[row] &&
         column_end[next] == column_end[row]) {
    next += shape_.kernels->strip_rows;
  }
  return std::min(next, block.rows);
}

void Flash::multiply_keys(const KeyChunk& chunk, const Block& block) {
  const KernelTable& kernels = *shape_.kernels;
  const int32_t* column_begin = trims_ + 2 * block.rows;
  const int32_t* column_end = column_begin + block.rows;
  MultiplyArgs args;
  args.num_segments = shape_.depths[1] > 0 ? 2 : 1;
  args.c_stride = score_stride_;
  for (int64_t column = 0; column < block.keys; column += kPanelColumns) {
    const int64_t keys = std::min(kPanelColumns, chunk.key_end - block.key - column);
    const auto wanted = [&](int64_t row) {
      return column_begin[row] < column + kPanelColumns ? std::min(column_end[row] - column, keys) : 0;
    };
    const int64_t panel = (block.key - chunk.key_begin + column) / kPanelColumns;
    for (int64_t row = 0, next = 0; row < block.rows; row = next) {
      args.columns = wanted(row);
      for (next = row; next < block.rows && wanted(next) == args.columns;) next += kernels.strip_rows;
      if (args.columns <= 0) continue;
      args.rows = std::min(next, block.rows) - row;
      const std::byte* q = this->q(block.row + row);
      for (int part = 0; part < args.num_segments; ++part) {
        const int64_t depth = shape_.padded_depth(part);
        args.segments[part] = {q, chunk.keys[part] + panel * shape_.key_panel_bytes(part), q_stride_, depth};
        q += depth * kernels.operand_bytes;
      }
      args.c = scores_ + row * score_stride_ + column;
      kernels.multiply(args);
    }
  }
}

void Flash::take_softmax(const Block& block) {
  SoftmaxArgs args;
  args.rows = block.rows;
  args.scores = scores_;
  args.score_stride = score_stride_;
  args.p = p_;
  args.p_stride = p_stride_;
  args.visible_begin = trims_;
  args.visible_end = trims_ + block.rows;
  args.column_begin = trims_ + 2 * block.rows;
  args.column_end = trims_ + 3 * block.rows;
  args.scale = shape_.softmax_scale == 0.0 ? 1.0f : static_cast<float>(std::fabs(shape_.softmax_scale));
  args.max = max_ + block.row;
  args.sum = sum_ + block.row;
  args.out = out(block.row);
  args.out_stride = out_stride_;
  args.out_columns = shape_.v_columns;
  shape_.kernels->softmax(args);
}

void Flash::multiply_values(const KeyChunk& chunk, const Block& block) {
  const KernelTable& kernels = *shape_.kernels;
  const int64_t key_bytes = kPanelColumns * kernels.operand_bytes;
  const int32_t* column_begin = trims_ + 2 * block.rows;
  const int32_t* column_end = column_begin + block.rows;
  MultiplyArgs args;
  args.accumulate = block.started;
  args.c_stride = out_stride_;
  for (int64_t row = 0, next = 0; row < block.rows; row = next) {
    next = next_trim(block, row);
    const int64_t first = column_begin[row];
    const int64_t depth = column_end[row] - first;
    args.rows = next - row;
    if (depth == 0 && !block.started) clear_output(block.row + row, args.rows);
    for (int64_t v = 0; v < shape_.v_columns && depth > 0; v += kPanelColumns) {
      const std::byte* panel = chunk.values + v / kPanelColumns * chunk.value_panel_bytes +
                               (block.key - chunk.key_begin) * key_bytes;
      args.segments[0] = {p_ + (row * p_stride_ + first) * kernels.operand_bytes, panel + first * key_bytes,
                          p_stride_, depth};
      args.c = out(block.row + row) + v;
      kernels.multiply(args);
    }
  }
}

void Flash::clear_output(int64_t row, int64_t rows) {
  std::memset(out(row), 0, static_cast<size_t>(rows * out_stride_) * sizeof(float));
}

/// Whether a value that is not finite lies in a panel that some row of the block must not see all of: the
/// probability 0 of a hidden key times NaN would be NaN.
bool Flash::needs_exact_values(const KeyChunk& chunk, const Block& block) const {
  const int64_t first = (block.key - chunk.key_begin) / kPanelColumns;
  const int64_t panels = block.keys / kPanelColumns;
  const bool finite = std::all_of(chunk.values_finite + first, chunk.values_finite + first + panels,
                                  [](bool panel_finite) { return panel_finite; });
  if (finite) return false;
  const int64_t real_keys = std::min(block.keys, chunk.key_end - block.key);
  const int32_t* begin = trims_;
  const int32_t* end = begin + block.rows;
  return begin[block.rows - 1] > 0 || end[0] < real_keys;
}

void Flash::multiply_values_exactly(const KeyChunk& chunk, const Block& block) {
  for (int64_t column = 0; column < block.keys; column += kPanelColumns) {
    add_visible_values(chunk, block, column);
  }
}

/// Adds the values of the 64 keys from `column` to the rows that see them, and touches no others.
void Flash::add_visible_values(const KeyChunk& chunk, const Block& block, int64_t column) {
  const bool bf16 = shape_.kernels->operand == Operand::kBF16;
  const int32_t* begin = trims_;
  const int32_t* end = begin + block.rows;
  const auto element = [bf16](const std::byte* data, int64_t index) {
    return load_float(data, bf16 ? DType::kBF16 : DType::kF32, index);
  };
  for (int64_t i = 0; i < block.rows; ++i) {
    float* out = this->out(block.row + i);
    const int64_t first = std::max<int64_t>(begin[i], column);
    const int64_t last = std::min<int64_t>(end[i], column + kPanelColumns);
    for (int64_t j = first; j < last; ++j) {
      const float p = element(p_, i * p_stride_ + j);
      const int64_t key = block.key - chunk.key_begin + j;
      for (int64_t v = 0; v < shape_.v_columns; ++v) {
        const std::byte* panel = chunk.values + v / kPanelColumns * chunk.value_panel_bytes;
        out[v] += p * element(panel, shape_.kernels->panel_index(key, v % kPanelColumns));
      }
    }
  }
}

void Flash::finish() {
  if (!begun_) begin_rows(0, queries_.rows);
  if (!one_chunk_) finish_rows(0, queries_.rows);
}

void Flash::finish_rows(int64_t row, int64_t rows) {
  const int64_t query_block = shape_.kernels->query_block;
  for (int64_t i = row; i < row + rows; i += query_block) {
    if (!started_[i / query_block]) clear_output(i, std::min(query_block, row + rows - i));
  }
  if (queries_.store_state) return write_state(row, rows);
  write_lse(row, rows);
  write_output(row, rows);
}

void Flash::write_lse(int64_t row, int64_t rows) {
  const LseView& lse = queries_.lse;
  if (lse.data == nullptr) return;
  for (int64_t i = row; i < row + rows; ++i) {
    float* target = lse.data + i * lse.token_stride;
    if (sum_[i] == 0.0f) {
      *target = -std::numeric_limits<float>::infinity();
      continue;
    }
    // The kernels take exponents relative to this rounded product, so it is the exact base of the sum.
    const float shift = max_[i] * kLog2E;
    const double log2_sum = static_cast<double>(std::log2(sum_[i])) + static_cast<double>(shift);
    *target = static_cast<float>(lse.base == LseBase::kLog2 ? log2_sum : log2_sum * kLn2);
  }
}

void Flash::write_output(int64_t row, int64_t rows) {
  float* factors = sum_ + row;
  for (int64_t i = 0; i < rows; ++i) factors[i] = factors[i] == 0.0f ? 0.0f : 1.0f / factors[i];
  FinishArgs args;
  args.rows = rows;
  args.columns = shape_.v_columns;
  args.out = out(row);
  args.out_stride = out_stride_;
  args.factors = factors;
  args.target =
      static_cast<std::byte*>(queries_.out) + row * queries_.out_stride * size_bytes(queries_.out_dtype);
  args.target_dtype = queries_.out_dtype;
  args.target_stride = queries_.out_stride;
  shape_.kernels->finish(args);
}

void Flash::write_state(int64_t row, int64_t rows) {
  for (int64_t i = row; i < row + rows; ++i) {
    std::memcpy(queries_.state_out + i * queries_.state_out_stride, out(i),
                static_cast<size_t>(shape_.v_columns) * sizeof(float));
  }
  std::memcpy(queries_.state_max + row, max_ + row, static_cast<size_t>(rows) * sizeof(float));
  std::memcpy(queries_.state_sum + row, sum_ + row, static_cast<size_t>(rows) * sizeof(float));
}

}  // namespace mlaprefill::cpu
