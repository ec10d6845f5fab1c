#include <algorithm>
#include <cmath>

#include "backend/reference/online_softmax.h"
#include "backend/reference/operations.h"
#include "core/float_formats.h"
#include "core/tensor_access.h"

namespace mlaprefill::reference {
namespace {

// Keys between two roundings of the state to float32 when a call is `invariant`: cuts fall on its multiples.
constexpr int64_t kKeyTile = 64;

HeadKeys load_keys(const AttentionArgs& args, const AttentionSpan& span, int64_t kv_head) {
  HeadKeys keys;
  keys.qk_dim = args.q.shape[2];
  keys.v_dim = args.v.shape[2];
  keys.v = load_rows(args.v, span.k_row, span.k_len, kv_head);
  const std::vector<double> own = load_rows(args.k, span.k_row, span.k_len, kv_head);
  if (!args.k_rope.present()) {
    keys.k = own;
    return keys;
  }
  const std::vector<double> rope = load_rows(args.k_rope, span.k_row, span.k_len, 0);
  const int64_t own_dim = args.k.shape[2];
  const int64_t rope_dim = args.k_rope.shape[1];
  keys.k.reserve(own.size() + rope.size());
  for (int64_t j = 0; j < span.k_len; ++j) {
    keys.k.insert(keys.k.end(), own.begin() + j * own_dim, own.begin() + (j + 1) * own_dim);
    keys.k.insert(keys.k.end(), rope.begin() + j * rope_dim, rope.begin() + (j + 1) * rope_dim);
  }
  return keys;
}

struct RowAddress {
  int64_t row;
  int64_t head;
  int64_t heads;
  int64_t rows;

  int64_t head_major() const { return head * rows + row; }
  int64_t row_major() const { return row * heads + head; }
};

SoftmaxState load_state(const AttentionState& carried, const RowAddress& at, int64_t v_dim) {
  SoftmaxState state(v_dim);
  state.max = carried.max[at.head_major()];
  state.sum = carried.sum[at.head_major()];
  const float* out = carried.out + at.row_major() * v_dim;
  std::copy(out, out + v_dim, state.out.begin());
  return state;
}

void store_state(const SoftmaxState& state, const AttentionState& carried, const RowAddress& at) {
  carried.max[at.head_major()] = static_cast<float>(state.max);
  carried.sum[at.head_major()] = static_cast<float>(state.sum);
  const auto v_dim = static_cast<int64_t>(state.out.size());
  for (int64_t d = 0; d < v_dim; ++d) {
    carried.out[at.row_major() * v_dim + d] = static_cast<float>(state.out[static_cast<size_t>(d)]);
  }
}

void store_result(const SoftmaxState& state, const AttentionArgs& args, const RowAddress& at) {
  void* out = element_address(args.out, at.row, at.head);
  for (int64_t d = 0; d < args.out.shape[2]; ++d) {
    store_float(out, args.out.dtype, d, static_cast<float>(normalised(state, d)));
  }
  if (args.lse.data != nullptr) {
    args.lse.data[at.head * args.lse.head_stride + at.row * args.lse.token_stride] =
        static_cast<float>(log_sum_exp(state, args.lse.base));
  }
}

void attend_query(const AttentionArgs& args, const AttentionSpan& span, const HeadKeys& keys, int64_t query,
                  int64_t head) {
  const RowAddress at{span.q_row + query, head, args.q.shape[1], args.q.shape[0]};
  const std::vector<double> q = load_rows(args.q, at.row, 1, head);
  SoftmaxState state = span.resume ? load_state(args.state, at, keys.v_dim) : SoftmaxState(keys.v_dim);
  const int64_t visible = std::clamp<int64_t>(span.causal_offset + query + 1, 0, span.k_len);
  const int64_t step = args.invariant ? kKeyTile : std::max<int64_t>(visible, 1);
  for (int64_t begin = 0; begin < visible; begin += step) {
    absorb(keys, begin, std::min(begin + step, visible), q.data(), args.softmax_scale, state);
    if (args.invariant) round_to_float(state);
  }
  if (span.store_state) {
    store_state(state, args.state, at);
  } else {
    store_result(state, args, at);
  }
}

}  // namespace

std::vector<double> load_rows(const ConstTensor& tensor, int64_t row_begin, int64_t count, int64_t head) {
  const int64_t columns = tensor.shape[static_cast<size_t>(tensor.rank - 1)];
  std::vector<double> values;
  values.reserve(static_cast<size_t>(count * columns));
  for (int64_t row = row_begin; row < row_begin + count; ++row) {
    const void* source = tensor.rank == 3 ? element_address(tensor, row, head) : element_address(tensor, row);
    for (int64_t d = 0; d < columns; ++d) values.push_back(load_float(source, tensor.dtype, d));
  }
  return values;
}

void attention(const AttentionArgs& args) {
  const int64_t heads = args.q.shape[1];
  const int64_t heads_per_kv_head = heads / args.k.shape[1];
  for (const AttentionSpan& span : args.spans) {
    if (span.q_len == 0) continue;
    for (int64_t head = 0; head < heads; ++head) {
      const HeadKeys keys = load_keys(args, span, head / heads_per_kv_head);
      for (int64_t query = 0; query < span.q_len; ++query) attend_query(args, span, keys, query, head);
    }
  }
}

}  // namespace mlaprefill::reference
