// Ragged attention on the caller's expanded keys and values.
#include <algorithm>
#include <cmath>

#include "backend/cpu/call.h"
#include "mlaprefill/backend.h"

namespace mlaprefill::cpu {
namespace {

// Keys and values packed at once where a task has several chunks: in a 2 MiB L2 cache beside the scores.
constexpr int64_t kChunkBytes = int64_t{640} * 1024;
// Cost of packing one key and value, in visible pairs.
constexpr double kPackCostPairs = 40.0;

FlashShape flash_shape(const CallResources& resources, const AttentionArgs& args) {
  FlashShape shape;
  const bool bf16 = args.q.dtype == DType::kBF16;
  shape.kernels = &resources.kernels(bf16 ? bf16_operand(resources.level) : Operand::kF32);
  shape.depths[0] = args.k.shape[2];
  shape.depths[1] = args.k_rope.present() ? args.k_rope.shape[1] : 0;
  shape.v_columns = args.v.shape[2];
  shape.softmax_scale = args.softmax_scale;
  shape.key_block = args.invariant ? kPanelColumns : shape.kernels->key_block;
  return shape;
}

int64_t chunk_keys(const FlashShape& shape, int64_t keys) {
  const int64_t key_bytes = (shape.padded_depth(0) + shape.padded_depth(1) + shape.padded_v_columns()) *
                            shape.kernels->operand_bytes;
  return keys_at_once(keys, std::max<int64_t>(kChunkBytes / key_bytes / kPanelColumns, 1) * kPanelColumns);
}

int64_t visible_keys(const AttentionSpan& span, int64_t query) {
  if (span.causal_offset == AttentionSpan::kNotCausal) return span.k_len;
  return std::clamp<int64_t>(span.causal_offset + query + 1, 0, span.k_len);
}

double span_cost(const AttentionSpan& span, int64_t query_begin, int64_t query_rows) {
  const int64_t last = query_begin + query_rows - 1;
  const double pairs = span.causal_offset == AttentionSpan::kNotCausal
                           ? static_cast<double>(query_rows) * static_cast<double>(span.k_len)
                           : visible_pairs(query_rows, span.causal_offset + query_begin + 1, span.k_len);
  return pairs + kPackCostPairs * static_cast<double>(visible_keys(span, last)) +
         static_cast<double>(query_rows);
}

// One piece a span, or several of equally many query blocks where one would keep the other workers waiting.
void make_pieces(const AttentionArgs& args, const KernelTable& kernels, int32_t workers,
                 std::vector<Piece>& pieces) {
  pieces.clear();
  double total = 0.0;
  for (const AttentionSpan& span : args.spans) total += span.q_len > 0 ? span_cost(span, 0, span.q_len) : 0.0;
  const auto heads = static_cast<double>(args.q.shape[1]);
  const double wanted = workers > 1 ? total * heads / (kPiecesPerWorker * workers) : total;
  for (size_t s = 0; s < args.spans.size(); ++s) {
    const AttentionSpan& span = args.spans[s];
    if (span.q_len == 0) continue;
    const auto cost = [&span](int64_t begin, int64_t rows) { return span_cost(span, begin, rows); };
    append_pieces(static_cast<int64_t>(s), span.q_len, kernels.query_block, cost(0, span.q_len) / wanted,
                  cost, pieces);
  }
}

FlashQueries piece_queries(const AttentionArgs& args, const AttentionSpan& span, const Piece& piece,
                           int64_t head) {
  const int64_t row = span.q_row + piece.query_begin;
  const int64_t q_rows = args.q.shape[0];
  const int64_t heads = args.q.shape[1];
  const int64_t v_dim = args.v.shape[2];
  FlashQueries queries = flash_queries(args.q, args.out, args.lse, row, piece.query_rows, head);
  queries.resume = span.resume;
  queries.store_state = span.store_state;
  if (span.resume || span.store_state) {
    queries.state_out = args.state.out + (row * heads + head) * v_dim;
    queries.state_out_stride = heads * v_dim;
    queries.state_max = args.state.max + head * q_rows + row;
    queries.state_sum = args.state.sum + head * q_rows + row;
  }
  return queries;
}

void attend_piece(const AttentionArgs& args, const FlashShape& shape, WorkerScratch& scratch,
                  const TaskQueue::Task& task) {
  const Piece& piece = *task.piece;
  const AttentionSpan& span = args.spans[static_cast<size_t>(piece.source)];
  const int64_t kv_head = task.head / (args.q.shape[1] / args.k.shape[1]);
  Flash& flash = scratch.flash;
  flash.begin(shape, piece_queries(args, span, piece, task.head));
  for (int64_t i = 0; i < piece.query_rows; ++i) {
    flash.visible_begin()[i] = 0;
    flash.visible_end()[i] = visible_keys(span, piece.query_begin + i);
  }
  const int64_t end = flash.visible_end()[piece.query_rows - 1];
  const HeadRows keys[2] = {head_rows(args.k, span.k_row, kv_head),
                            shape.depths[1] > 0 ? head_rows(args.k_rope, span.k_row, 0) : HeadRows{}};
  const HeadRows values = head_rows(args.v, span.k_row, kv_head);
  const int64_t step = chunk_keys(shape, end);
  for (int64_t begin = 0; begin < end; begin += step) {
    flash.attend(scratch.packer.pack(shape, keys, values, begin, std::min(begin + step, end)));
  }
  flash.finish();
}

}  // namespace

void attention(CallResources& resources, const AttentionArgs& args) {
  const FlashShape shape = flash_shape(resources, args);
  Pool<CallScratch>::Lease scratch(resources.calls);
  TaskQueue& queue = scratch->queue;
  make_pieces(args, *shape.kernels, resources.workers.size(), queue.pieces());
  queue.start(args.q.shape[1]);
  int64_t keys = 0;
  for (const AttentionSpan& span : args.spans) keys = std::max(keys, span.k_len);
  keys = std::min(keys, chunk_keys(shape, 0));
  run_tasks(
      resources, *shape.kernels, *scratch,
      [&](WorkerScratch& worker) {
        worker.flash.reserve(shape, queue.most_rows());
        worker.packer.reserve(shape, keys);
      },
      [&](WorkerScratch& worker, const TaskQueue::Task& task) { attend_piece(args, shape, worker, task); });
}

}  // namespace mlaprefill::cpu
