#include "verify/oracle.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "backend/latent_cache.h"
#include "core/tensor_access.h"
#include "verify/evaluation.h"

namespace mlaprefill::verify {
namespace {

constexpr int64_t kChunkKeys = 512;

template <typename Number>
void append_row(const ConstTensor& tensor, int64_t row, int64_t head, std::vector<Number>& to) {
  const void* source = tensor.rank == 3 ? element_address(tensor, row, head) : element_address(tensor, row);
  const int64_t columns = tensor.shape[static_cast<size_t>(tensor.rank - 1)];
  for (int64_t d = 0; d < columns; ++d) to.push_back(load_float(source, tensor.dtype, d));
}

template <typename Number>
std::vector<Number> query(const ConstTensor& q, RowHead at) {
  std::vector<Number> values;
  append_row(q, at.row, at.head, values);
  return values;
}

// A query of one head and the keys it may see: local keys 0 .. last_key.
struct Query {
  RowHead at;
  int64_t last_key;
};

// Runs the queries of one head over its keys; `chunk(begin, count)` makes the keys.
template <typename Number, typename MakeChunk>
std::vector<QueryState<Number>> evaluate(const ConstTensor& q, int64_t v_dim, std::span<const Query> queries,
                                         double scale, const MakeChunk& chunk) {
  const Arithmetic<Number> arithmetic(q.dtype);
  std::vector<QueryState<Number>> states;
  int64_t keys = 0;
  for (const Query& one : queries) {
    states.emplace_back(query<Number>(q, one.at), v_dim);
    keys = std::max(keys, one.last_key + 1);
  }
  for (int64_t begin = 0; begin < keys; begin += kChunkKeys) {
    const int64_t count = std::min(kChunkKeys, keys - begin);
    const KeyChunk<Number> key_chunk = chunk(arithmetic, begin, count);
    for (size_t i = 0; i < queries.size(); ++i) {
      states[i].see(key_chunk, std::min(queries[i].last_key + 1 - begin, count), scale, arithmetic);
    }
  }
  return states;
}

void append_expected(std::span<const Query> queries, const std::vector<QueryState<double>>& exact,
                     const std::vector<QueryState<float>>& naive, DType out_dtype,
                     std::vector<ExpectedRow>& rows) {
  for (size_t i = 0; i < queries.size(); ++i) {
    rows.push_back({.at = queries[i].at,
                    .out = exact[i].result(out_dtype),
                    .lse = exact[i].lse(),
                    .naive_out = naive[i].result(out_dtype),
                    .naive_lse = naive[i].lse()});
  }
}

template <typename Number>
KeyChunk<Number> attention_chunk(const AttentionArgs& args, const AttentionSpan& span, int64_t kv_head,
                                 int64_t begin, int64_t count) {
  KeyChunk<Number> chunk;
  chunk.count = count;
  for (int64_t row = span.k_row + begin; row < span.k_row + begin + count; ++row) {
    append_row(args.k, row, kv_head, chunk.k);
    if (args.k_rope.present()) append_row(args.k_rope, row, 0, chunk.k);
    append_row(args.v, row, kv_head, chunk.v);
  }
  return chunk;
}

// One head's layer inputs.
class LayerHead {
 public:
  LayerHead(const Plan& plan, const ConstTensor& kv_b_proj, const LayerTensors& tensors, int32_t request,
            int64_t head)
      : plan_(plan),
        kv_b_proj_(kv_b_proj),
        tensors_(tensors),
        request_(static_cast<size_t>(request)),
        head_(head) {}

  template <typename Number>
  KeyChunk<Number> chunk(const Arithmetic<Number>& arithmetic, int64_t begin, int64_t count) const {
    const MlaDims& dims = plan_.dims;
    const std::vector<Number> weight = transposed_weight(arithmetic);
    KeyChunk<Number> chunk;
    chunk.count = count;
    for (int64_t position = begin; position < begin + count; ++position) {
      std::vector<Number> latent = latent_row<Number>(position);
      for (Number& value : latent) value = arithmetic.round(value);
      std::vector<Number> expanded(static_cast<size_t>(dims.expanded_head_dim()), Number{0});
      for (int64_t r = 0; r < dims.kv_lora_rank; ++r) {
        const Number factor = latent[static_cast<size_t>(r)];
        const Number* row = weight.data() + r * dims.expanded_head_dim();
        for (size_t d = 0; d < expanded.size(); ++d) expanded[d] += factor * row[d];
      }
      for (Number& value : expanded) value = arithmetic.round(value);
      chunk.k.insert(chunk.k.end(), expanded.begin(), expanded.begin() + dims.qk_nope_head_dim);
      chunk.k.insert(chunk.k.end(), latent.begin() + dims.kv_lora_rank, latent.end());
      chunk.v.insert(chunk.v.end(), expanded.begin() + dims.qk_nope_head_dim, expanded.end());
    }
    return chunk;
  }

 private:
  // [kv_lora_rank, nope + v] of this head.
  template <typename Number>
  std::vector<Number> transposed_weight(const Arithmetic<Number>& arithmetic) const {
    const int64_t width = plan_.dims.expanded_head_dim();
    const int64_t rank = plan_.dims.kv_lora_rank;
    std::vector<Number> weight(static_cast<size_t>(rank * width));
    for (int64_t column = 0; column < width; ++column) {
      const void* row = element_address(kv_b_proj_, head_ * width + column);
      for (int64_t r = 0; r < rank; ++r) {
        weight[static_cast<size_t>(r * width + column)] =
            arithmetic.round(load_float(row, kv_b_proj_.dtype, r));
      }
    }
    return weight;
  }

  template <typename Number>
  std::vector<Number> latent_row(int64_t position) const {
    std::vector<Number> values;
    const int64_t context = plan_.context_lens[request_];
    if (position >= context) {
      const int64_t row = plan_.query_start_loc[request_] + position - context;
      append_row(tensors_.kv_latent, row, 0, values);
      append_row(tensors_.k_rope, row, 0, values);
      return values;
    }
    const int64_t entry = plan_.block_begin[request_] + position / plan_.block_size;
    const int64_t block = plan_.blocks[static_cast<size_t>(entry)];
    for (int64_t d = 0; d < plan_.dims.latent_dim(); ++d) {
      values.push_back(static_cast<Number>(cached_value(block, position % plan_.block_size, d)));
    }
    return values;
  }

  double cached_value(int64_t block, int64_t offset, int64_t d) const {
    const KvCache& cache = tensors_.cache;
    const auto* row = static_cast<const uint8_t*>(element_address(cache.data, block, offset));
    if (cache.data.dtype != DType::kU8) {
      const double scale = cache.data.dtype == DType::kF8E4M3 ? double{cache.scale} : 1.0;
      return scale * load_float(row, cache.data.dtype, d);
    }
    if (d >= 512) return load_float(row + 528, DType::kBF16, d - 512);
    return double{load_float(row + 512, DType::kF32, d / 128)} * load_float(row, DType::kF8E4M3, d);
  }

  const Plan& plan_;
  const ConstTensor& kv_b_proj_;
  const LayerTensors& tensors_;
  size_t request_;
  int64_t head_;
};

// The request whose new tokens hold a query row.
int32_t request_of(const Plan& plan, int64_t row) {
  const auto& starts = plan.query_start_loc;
  return static_cast<int32_t>(std::upper_bound(starts.begin(), starts.end(), row) - starts.begin()) - 1;
}

}  // namespace

std::vector<ExpectedRow> expect_attention(const AttentionArgs& args, std::span<const int64_t> heads) {
  const int64_t group = args.q.shape[1] / args.k.shape[1];
  std::vector<ExpectedRow> rows;
  for (const AttentionSpan& span : args.spans) {
    for (const int64_t head : heads) {
      std::vector<Query> queries;
      for (int64_t i = 0; i < span.q_len; ++i) {
        queries.push_back({{span.q_row + i, head}, std::min(span.causal_offset + i, span.k_len - 1)});
      }
      const auto chunk = [&]<typename Number>(const Arithmetic<Number>&, int64_t begin, int64_t count) {
        return attention_chunk<Number>(args, span, head / group, begin, count);
      };
      const int64_t v_dim = args.v.shape[2];
      append_expected(queries, evaluate<double>(args.q, v_dim, queries, args.softmax_scale, chunk),
                      evaluate<float>(args.q, v_dim, queries, args.softmax_scale, chunk), args.out.dtype,
                      rows);
    }
  }
  return rows;
}

std::vector<ExpectedRow> expect_layer(const Plan& plan, const ConstTensor& kv_b_proj,
                                      const LayerTensors& tensors, std::span<const RowHead> rows) {
  std::map<std::pair<int32_t, int64_t>, std::vector<Query>> groups;
  for (const RowHead& at : rows) {
    const int32_t request = request_of(plan, at.row);
    const auto r = static_cast<size_t>(request);
    const int64_t last_key = plan.context_lens[r] + at.row - plan.query_start_loc[r];
    groups[{request, at.head}].push_back({at, last_key});
  }
  std::vector<ExpectedRow> expected;
  for (const auto& [key, queries] : groups) {
    const LayerHead head(plan, kv_b_proj, tensors, key.first, key.second);
    const auto chunk = [&head](const auto& arithmetic, int64_t begin, int64_t count) {
      return head.chunk(arithmetic, begin, count);
    };
    const int64_t v_dim = plan.dims.v_head_dim;
    const double scale = plan.dims.softmax_scale;
    append_expected(queries, evaluate<double>(tensors.q, v_dim, queries, scale, chunk),
                    evaluate<float>(tensors.q, v_dim, queries, scale, chunk), tensors.out.dtype, expected);
  }
  return expected;
}

std::vector<RowHead> all_rows(const Plan& plan, std::span<const int64_t> heads) {
  std::vector<RowHead> rows;
  for (size_t r = 0; r < static_cast<size_t>(plan.num_requests); ++r) {
    for (int64_t i = 0; i < plan.query_lens[r]; ++i) {
      for (const int64_t head : heads) rows.push_back({plan.query_start_loc[r] + i, head});
    }
  }
  return rows;
}

std::vector<int64_t> all_heads(int64_t count) {
  std::vector<int64_t> heads(static_cast<size_t>(count));
  std::iota(heads.begin(), heads.end(), 0);
  return heads;
}

}  // namespace mlaprefill::verify
