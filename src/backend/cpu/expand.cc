// Gather and up-projection of one pass into the caller's tensors.
#include <algorithm>

#include "backend/cpu/call.h"
#include "backend/cpu/weights.h"

namespace mlaprefill::cpu {
namespace {

std::byte* element(const Tensor& tensor, int64_t row, int64_t head, int64_t column) {
  const int64_t head_offset = tensor.rank == 3 ? head * tensor.stride[1] : 0;
  return static_cast<std::byte*>(tensor.data) +
         (row * tensor.stride[0] + head_offset + column) * size_bytes(tensor.dtype);
}

/// Writes float32 rows to rows of a tensor, rounded to its dtype.
void write_rows(const KernelTable& kernels, const float* from, int64_t from_stride, int64_t rows,
                int64_t columns, const Tensor& tensor, std::byte* to) {
  static constexpr float kOnes[kPanelColumns] = {
      1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
      1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  FinishArgs args;
  args.rows = rows;
  args.columns = columns;
  args.out = from;
  args.out_stride = from_stride;
  args.factors = kOnes;
  args.target = to;
  args.target_dtype = tensor.dtype;
  args.target_stride = tensor.stride[0];
  kernels.finish(args);
}

/// 64 keys of one span.
class PanelExpander {
 public:
  PanelExpander(const ExpandArgs& args, const PackedWeights& weights, const KernelTable& f32,
                ExpandScratch& scratch)
      : args_(args), dims_(args.plan->dims), weights_(weights), f32_(f32), scratch_(scratch) {}

  void run(const LatentSource& source, const Span& span, int64_t key_begin, int64_t key_end) {
    count_ = key_end - key_begin;
    row_ = span.row_begin + key_begin - span.key_begin;
    gather(source, span.request, key_begin, key_end);
    for (int64_t head = 0; head < dims_.num_heads; ++head) {
      UpProjection& product = scratch_.product;
      product.multiply(weights_, head, scratch_.rows, stride_, count_);
      write_rows(f32_, product.keys(), product.stride(), count_, dims_.qk_nope_head_dim, args_.expanded,
                 element(args_.expanded, row_, head, 0));
      write_rows(f32_, product.values(), product.stride(), count_, dims_.v_head_dim, args_.expanded,
                 element(args_.expanded, row_, head, dims_.qk_nope_head_dim));
    }
  }

 private:
  void gather(const LatentSource& source, int64_t request, int64_t key_begin, int64_t key_end) {
    const int64_t rank = dims_.kv_lora_rank, rope = dims_.qk_rope_head_dim;
    source.read(request, key_begin, key_end,
                {&f32_, reinterpret_cast<std::byte*>(scratch_.latents), rank, rank},
                {&f32_, reinterpret_cast<std::byte*>(scratch_.rope), rope, rope});
    write_rows(f32_, scratch_.latents, rank, count_, rank, args_.latent, element(args_.latent, row_, 0, 0));
    write_rows(f32_, scratch_.rope, rope, count_, rope, args_.latent, element(args_.latent, row_, 0, rank));

    const KernelTable& kernels = weights_.kernels();
    stride_ = row_stride(weights_.padded_rank(), kernels.operand_bytes);
    ConvertArgs convert;
    convert.source = scratch_.latents;
    convert.source_stride = rank;
    convert.rows = count_;
    convert.columns = rank;
    convert.padded_columns = weights_.padded_rank();
    convert.target = scratch_.rows;
    convert.target_stride = stride_;
    kernels.convert_rows(convert);
  }

  const ExpandArgs& args_;
  const MlaDims& dims_;
  const PackedWeights& weights_;
  const KernelTable& f32_;
  ExpandScratch& scratch_;
  int64_t count_ = 0;
  int64_t row_ = 0;
  int64_t stride_ = 0;
};

}  // namespace

void ExpandScratch::reserve(const MlaDims& dims, const PackedWeights& weights) {
  const int64_t operand_bytes = weights.kernels().operand_bytes;
  const int64_t rank = weights.padded_rank();
  product.reserve(weights);
  latents = latent_buffer_.reserve<float>(kPanelColumns * dims.kv_lora_rank);
  rope = rope_buffer_.reserve<float>(kPanelColumns * dims.qk_rope_head_dim);
  rows = row_buffer_.reserve<std::byte>(kPanelColumns * row_stride(rank, operand_bytes) * operand_bytes);
}

void expand(CallResources& resources, const ExpandArgs& args) {
  const Plan& plan = *args.plan;
  const auto& weights = static_cast<const CpuWeights&>(*args.weights);
  const bool bf16 = plan.options.working_dtype == DType::kBF16 && weights.dtype() == DType::kBF16;
  const PackedWeights& packed = weights.packed(bf16 ? bf16_operand(resources.level) : Operand::kF32);
  const KernelTable& f32 = resources.kernels(Operand::kF32);
  const LatentSource source(plan, args.cache, args.kv_latent, args.k_rope);
  const Pass& pass = plan.passes[static_cast<size_t>(args.pass)];

  Pool<CallScratch>::Lease scratch(resources.calls);
  std::vector<Piece>& pieces = scratch->queue.pieces();
  pieces.clear();
  for (int64_t s = pass.span_begin; s < pass.span_end; ++s) {
    const Span& span = plan.spans[static_cast<size_t>(s)];
    for (int64_t key = span.key_begin; key < span.key_end; key += kPanelColumns) {
      pieces.push_back({s, key, std::min(kPanelColumns, span.key_end - key), 1.0});
    }
  }
  scratch->queue.start(1);
  run_tasks(
      resources, packed.kernels(), *scratch,
      [&](WorkerScratch& worker) { worker.expand.reserve(plan.dims, packed); },
      [&](WorkerScratch& worker, const TaskQueue::Task& task) {
        const Piece& piece = *task.piece;
        PanelExpander(args, packed, f32, worker.expand)
            .run(source, plan.spans[static_cast<size_t>(piece.source)], piece.query_begin,
                 piece.query_begin + piece.query_rows);
      });
}

}  // namespace mlaprefill::cpu
