// The layer without expanded keys and values in memory: latents are packed once for all heads, each head
// up-projects a chunk of keys at a time and attends to it at once.
#include <algorithm>
#include <cmath>

#include "backend/cpu/call.h"
#include "backend/cpu/weights.h"

namespace mlaprefill::cpu {
namespace {

// Keys and values up-projected at once where a task has several chunks: in a 2 MiB L2 cache beside the
// scores.
constexpr int64_t kChunkBytes = int64_t{512} * 1024;
// An up-projection runs nearer to the multiplication peak than attention does.
constexpr double kProjectionCost = 0.6;

/// One call: what its tasks read.
struct Layer {
  const FusedLayerArgs& args;
  const Plan& plan;
  const PackedWeights& weights;
  FlashShape shape;
  LayerScratch& scratch;
};

// bf16 where it is the working dtype of bf16 queries; other inputs are multiplied in float32.
Operand operand_for(IsaLevel level, const Plan& plan, DType other) {
  const bool bf16 = plan.options.working_dtype == DType::kBF16 && other == DType::kBF16;
  return bf16 ? bf16_operand(level) : Operand::kF32;
}

FlashShape flash_shape(const CallResources& resources, const FusedLayerArgs& args) {
  const Plan& plan = *args.plan;
  FlashShape shape;
  shape.kernels = &resources.kernels(operand_for(resources.level, plan, args.tensors.q.dtype));
  shape.depths[0] = plan.dims.qk_nope_head_dim;
  shape.depths[1] = plan.dims.qk_rope_head_dim;
  shape.v_columns = plan.dims.v_head_dim;
  shape.softmax_scale = plan.dims.softmax_scale;
  shape.key_block = plan.options.invariant ? kPanelColumns : shape.kernels->key_block;
  return shape;
}

int64_t chunk_keys(const Plan& plan, const FlashShape& shape, int64_t keys) {
  const int64_t key_bytes = (shape.padded_depth(0) + shape.padded_v_columns()) * shape.kernels->operand_bytes;
  const int64_t chunk = std::min(keys_at_once(keys, kChunkBytes / key_bytes), plan.options.workspace_tokens);
  return std::max<int64_t>(chunk / kPanelColumns, 1) * kPanelColumns;
}

double group_cost(const Plan& plan, const RequestGroup& group, int64_t query_begin, int64_t queries) {
  const MlaDims& dims = plan.dims;
  const bool alone = group.end_request == group.first_request + 1;
  const int64_t first = group.keys - group.queries + query_begin + 1;
  const int64_t keys = alone ? first + queries - 1 : group.keys;
  const double pairs = alone ? visible_pairs(queries, first, keys)
                             : static_cast<double>(queries) * static_cast<double>(kPanelColumns);
  return kProjectionCost * static_cast<double>(dims.kv_lora_rank) *
             static_cast<double>(dims.expanded_head_dim()) * static_cast<double>(keys) +
         static_cast<double>(dims.qk_head_dim() + dims.v_head_dim) * pairs;
}

// Parts of a group repeat its up-projection, so it is only cut where whole heads cannot fill the workers.
void make_pieces(const Layer& layer, int32_t workers, std::vector<Piece>& pieces) {
  pieces.clear();
  const std::vector<RequestGroup>& groups = layer.scratch.groups;
  double total = 0.0;
  for (const RequestGroup& group : groups) total += group_cost(layer.plan, group, 0, group.queries);
  const double share = total * static_cast<double>(layer.plan.dims.num_heads) / workers;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto cost = [&](int64_t begin, int64_t rows) {
      return group_cost(layer.plan, groups[g], begin, rows);
    };
    append_pieces(static_cast<int64_t>(g), groups[g].queries, layer.shape.kernels->query_block,
                  cost(0, groups[g].queries) / share - 1e-6, cost, pieces);
  }
}

/// Every query of the group sees its own request's keys up to its own position.
void set_visible_keys(const Plan& plan, const RequestGroup& group, const Piece& piece, Flash& flash) {
  int64_t first_key = 0;
  int64_t first_query = 0;
  for (int64_t request = group.first_request; request < group.end_request; ++request) {
    const auto r = static_cast<size_t>(request);
    const int64_t queries = plan.query_lens[r];
    if (queries == 0) continue;
    const int64_t begin = std::max(first_query, piece.query_begin);
    const int64_t end = std::min(first_query + queries, piece.query_begin + piece.query_rows);
    for (int64_t query = begin; query < end; ++query) {
      flash.visible_begin()[query - piece.query_begin] = first_key;
      flash.visible_end()[query - piece.query_begin] =
          first_key + plan.context_lens[r] + query - first_query + 1;
    }
    first_query += queries;
    first_key += plan.context_lens[r] + queries;
  }
}

void attend_piece(const Layer& layer, WorkerScratch& scratch, const TaskQueue::Task& task) {
  const Piece& piece = *task.piece;
  const RequestGroup& group = layer.scratch.groups[static_cast<size_t>(piece.source)];
  Flash& flash = scratch.flash;
  const LayerTensors& tensors = layer.args.tensors;
  flash.begin(layer.shape, flash_queries(tensors.q, tensors.out, tensors.lse,
                                         group.query_row + piece.query_begin, piece.query_rows, task.head));
  set_visible_keys(layer.plan, group, piece, flash);
  const int64_t end = flash.visible_end()[piece.query_rows - 1];
  const int64_t step = chunk_keys(layer.plan, layer.shape, end);
  for (int64_t begin = 0; begin < end; begin += step) {
    flash.attend(scratch.projector.project(layer.shape, layer.weights, layer.plan.options.working_dtype,
                                           layer.scratch.latents, group, task.head, begin,
                                           std::min(begin + step, end)));
  }
  flash.finish();
}

void pack_latents(CallResources& resources, const Layer& layer) {
  const LayerTensors& tensors = layer.args.tensors;
  const LatentSource source(layer.plan, tensors.cache, tensors.kv_latent, tensors.k_rope);
  LayerScratch& scratch = layer.scratch;
  const RequestGroup& last = scratch.groups.back();
  const int64_t keys = last.key_begin + round_up(last.keys, kPanelColumns);
  scratch.latents.prepare(layer.weights, *layer.shape.kernels, layer.plan.dims, keys);
  run_indexed(resources, keys / kPanelColumns, [&](int64_t panel) {
    const int64_t key = panel * kPanelColumns;
    const auto after =
        std::upper_bound(scratch.groups.begin(), scratch.groups.end(), key,
                         [](int64_t k, const RequestGroup& group) { return k < group.key_begin; });
    scratch.latents.fill(source, layer.plan, *(after - 1), key);
  });
}

}  // namespace

void fused_layer(CallResources& resources, const FusedLayerArgs& args) {
  const Plan& plan = *args.plan;
  const auto& weights = static_cast<const CpuWeights&>(*args.weights);
  Pool<CallScratch>::Lease scratch(resources.calls);
  const std::vector<RequestGroup>& groups = scratch->layer.groups;
  group_requests(plan, scratch->layer.groups);
  if (groups.empty()) return;
  const FlashShape shape = flash_shape(resources, args);
  const Layer layer{args, plan, weights.packed(operand_for(resources.level, plan, weights.dtype())), shape,
                    scratch->layer};
  pack_latents(resources, layer);

  TaskQueue& queue = scratch->queue;
  make_pieces(layer, resources.workers.size(), queue.pieces());
  queue.start(plan.dims.num_heads);
  int64_t keys = 0;
  for (const RequestGroup& group : groups) keys = std::max(keys, group.keys);
  keys = std::min(keys, chunk_keys(plan, shape, 0));
  // Both kinds of kernels may run in one task; only those of the widest operand need bracketing.
  const KernelTable& bracket = resources.kernels(bf16_operand(resources.level));
  run_tasks(
      resources, bracket, *scratch,
      [&](WorkerScratch& worker) {
        worker.flash.reserve(shape, queue.most_rows());
        worker.projector.reserve(shape, layer.weights, keys);
      },
      [&](WorkerScratch& worker, const TaskQueue::Task& task) { attend_piece(layer, worker, task); });
}

}  // namespace mlaprefill::cpu
