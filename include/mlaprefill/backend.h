// Backends: named implementations of attention, merge, append, expand and, where they have one, a fused
// layer.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mlaprefill/dims.h"
#include "mlaprefill/plan.h"
#include "mlaprefill/status.h"
#include "mlaprefill/tensor.h"

namespace mlaprefill {

/// A device stream (cudaStream_t) the work is enqueued on; ignored by CPU backends, whose calls return when
/// done.
struct Stream {
  void* handle = nullptr;
};

/// Memory the caller lends to a call: host memory for CPU backends, device memory for CUDA ones.
struct Workspace {
  void* data = nullptr;
  int64_t size_bytes = 0;
};

/// One request's share of an attention call. Rows index the call's q, k and v tensors.
struct AttentionSpan {
  static constexpr int64_t kNotCausal = std::numeric_limits<int64_t>::max() / 4;

  int64_t q_row = 0;
  int64_t q_len = 0;
  int64_t k_row = 0;
  int64_t k_len = 0;
  /// Local query i sees local key j iff j <= causal_offset + i; may be negative. kNotCausal: every key.
  int64_t causal_offset = kNotCausal;
  bool resume = false;       ///< start from the carried state instead of an empty one
  bool store_state = false;  ///< write the carried state instead of the normalised output and LSE
};

/// Exact online-softmax state carried between calls, float32, un-normalised, natural-log domain of scaled
/// logits: out [q rows, num_heads, v_head_dim], max and sum [num_heads, q rows], all contiguous.
struct AttentionState {
  float* out = nullptr;
  float* max = nullptr;
  float* sum = nullptr;
};

/// Ragged attention. For each span and head: out = softmax(scale * q k^T) v over the visible keys.
/// A query without a visible key gives out = 0, LSE = -inf. Rows outside every span are not touched.
/// Spans of one call must not share query rows.
struct AttentionArgs {
  ConstTensor q;       ///< [q rows, num_heads, qk_dim], last stride 1
  ConstTensor k;       ///< [k rows, kv_heads, qk_dim], or [k rows, kv_heads, qk_dim - rope] beside k_rope
  ConstTensor k_rope;  ///< optional [k rows, rope], the last `rope` dims of every head's key
  ConstTensor v;       ///< [k rows, kv_heads, v_dim]; kv_heads divides num_heads
  std::span<const AttentionSpan> spans;
  double softmax_scale = 0.0;
  Tensor out;              ///< [q rows, num_heads, v_dim], last stride 1, q's dtype or float32
  LseView lse;             ///< optional, [num_heads, q rows]
  AttentionState state;    ///< required when a span resumes or stores
  bool invariant = false;  ///< bitwise independent of how a request's keys are cut (at key tiles) into calls

  /// A planned call: the spans are those of pass `pass` of `plan`, whose schedule Backend::upload wrote into
  /// `workspace`. Without a plan a device backend copies the schedule of `spans` into `workspace` itself
  /// (Backend::attention_workspace_bytes). Host backends read none of the three.
  const Plan* plan = nullptr;
  int64_t pass = 0;
  Workspace workspace;
};

/// Spans of plain ragged attention from the field's cumulative lengths, checked against the tensors' rows.
/// Causal is bottom-right per request: query i sees keys 0 .. kv_len - q_len + i.
Result<std::vector<AttentionSpan>> make_attention_spans(std::span<const int32_t> cu_seqlens_q,
                                                        std::span<const int32_t> cu_seqlens_k, bool causal,
                                                        int64_t q_rows, int64_t k_rows);

/// A partial result of attention over some of the keys.
struct PartialAttention {
  ConstTensor out;   ///< [T, H, D]
  ConstLseView lse;  ///< [H, T]; an incoming +inf counts as empty (-inf)
};

/// out = sum_i w_i out_i with w_i = exp(lse_i - lse). Zero partials, or only empty ones, give 0 and -inf.
/// May run in place: out and lse may be those of any one partial.
struct MergeArgs {
  std::span<const PartialAttention> partials;
  Tensor out;   ///< [T, H, D], last stride 1
  LseView lse;  ///< optional
};

/// A paged latent cache: [num_blocks, block_size, kv_lora_rank + rope] in bf16, f16, f32 or f8_e4m3, or
/// u8 [num_blocks, block_size, 656] for the packed row (512 e4m3, 4 float32 scales of 128 each, 64 bf16
/// rope).
struct KvCache {
  Tensor data;
  float scale = 1.0f;  ///< stored value * scale = latent; used for f8_e4m3 alone
};

/// Writes row i of the new latents to cache slot slot_mapping[i] = block * block_size + offset; -1 skips the
/// row.
struct AppendArgs {
  ConstTensor kv_latent;  ///< [T, kv_lora_rank]
  ConstTensor k_rope;     ///< [T, rope]
  const int64_t* slot_mapping =
      nullptr;  ///< [T]; host memory for a CPU backend, device memory for a CUDA one
  KvCache cache;
};

/// The up-projection weight of a layer, made ready for a backend (packed, uploaded ...). Immutable,
/// shareable.
class LayerWeights {
 public:
  virtual ~LayerWeights() = default;
};

/// The tensors one layer run reads and writes.
struct LayerTensors {
  ConstTensor q;          ///< [query rows, num_heads, nope + rope]
  ConstTensor kv_latent;  ///< [query rows, kv_lora_rank] latents of the new tokens
  ConstTensor k_rope;     ///< [query rows, rope]
  KvCache cache;          ///< needed when any request has context
  Tensor out;             ///< [query rows, num_heads, v_head_dim], q's dtype or float32
  LseView lse;            ///< optional, [num_heads, query rows]
};

/// Gathers the latents of one pass (cache rows dequantised, new rows copied) and up-projects them.
struct ExpandArgs {
  const Plan* plan = nullptr;
  int64_t pass = 0;
  Workspace workspace;  ///< the one Backend::upload wrote to; host backends do not read it
  const LayerWeights* weights = nullptr;
  ConstTensor kv_latent;
  ConstTensor k_rope;
  KvCache cache;
  Tensor latent;    ///< [pass rows, kv_lora_rank + rope], plan.options.working_dtype
  Tensor expanded;  ///< [pass rows, num_heads, nope + v], plan.options.working_dtype
};

/// One run of a backend's own fused layer.
struct FusedLayerArgs {
  const Plan* plan = nullptr;
  const LayerWeights* weights = nullptr;
  LayerTensors tensors;
};

/// What a caller is going to ask of a backend.
struct SupportQuery {
  MlaDims dims;
  DType query_dtype = DType::kBF16;
  DType output_dtype = DType::kBF16;
  DType weight_dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;  ///< kU8: the packed 656-byte row
  bool needs_context = true;
};

/// Allocation and copies in the memory a backend's tensors live in, for callers that do not manage it
/// themselves. Copies are ordered by the stream; those to and from host memory may return before they are
/// done.
class Memory {
 public:
  virtual ~Memory() = default;

  /// 256-byte aligned, contents undefined. Zero bytes give a null pointer.
  virtual Result<void*> allocate(int64_t size_bytes) const = 0;
  virtual void release(void* data) const = 0;
  virtual Status copy_from_host(void* to, const void* from, int64_t size_bytes, Stream stream) const = 0;
  virtual Status copy_to_host(void* to, const void* from, int64_t size_bytes, Stream stream) const = 0;
  /// Waits until everything enqueued on the stream is done.
  virtual Status synchronize(Stream stream) const = 0;
};

/// Plain host memory: what every backend without a device uses.
const Memory& host_memory();

/// An opened backend. Calls are re-entrant: any number of threads may use one instance at once.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  /// One line for people: ISA level or device, threads, why other levels were not chosen.
  virtual std::string description() const = 0;
  /// Instruction set level the kernels run at, e.g. "amx_bf16"; empty for a backend that has no levels.
  virtual std::string_view isa() const { return {}; }
  /// Properties make_plan should be given for plans this backend runs.
  virtual DeviceProperties device_properties() const = 0;
  /// Why this query cannot be served; empty: it can.
  virtual std::vector<std::string> supports(const SupportQuery& query) const = 0;

  /// Where the tensors of every call live.
  virtual const Memory& memory() const { return host_memory(); }

  /// Writes everything the planned calls of one forward pass need to plan.workspace.metadata_offset_bytes of
  /// the workspace, in one asynchronous copy. Once per plan, before its first layer, on the same stream.
  /// Not inside a captured graph: upload, then replay. Nothing to do for host backends.
  virtual Status upload(const Plan& plan, Workspace workspace, Stream stream) const;

  virtual Status attention(const AttentionArgs& args, Stream stream) const = 0;
  /// Workspace an attention call without a plan needs; 0 for host backends. Depends on the spans: on their
  /// number, and where keys are long enough to be split there is room for partial results.
  virtual int64_t attention_workspace_bytes(const AttentionArgs& args) const;
  virtual Status merge(const MergeArgs& args, Stream stream) const = 0;
  virtual Status append(const AppendArgs& args, Stream stream) const = 0;

  /// Prepares kv_b_proj [num_heads * (nope + v), kv_lora_rank], rows of a head: nope first, then v. Copies
  /// what it needs: the tensor may be released afterwards. A device backend waits for the copy.
  virtual Result<std::shared_ptr<const LayerWeights>> prepare_weights(const MlaDims& dims,
                                                                      ConstTensor kv_b_proj) const = 0;
  virtual Status expand(const ExpandArgs& args, Stream stream) const = 0;

  /// Whether planned attention calls take their spans from the uploaded plan alone: AttentionArgs::spans of
  /// such a call is not read.
  virtual bool attends_by_upload() const { return false; }

  virtual bool has_fused_layer() const = 0;
  /// The fused layer, when has_fused_layer(); kUnsupported otherwise.
  virtual Status fused_layer(const FusedLayerArgs& args, Stream stream) const = 0;
};

struct BackendOptions {
  int32_t num_threads = 0;   ///< CPU worker threads, 0: all hardware threads this process may use
  std::string isa = "auto";  ///< CPU ISA level: auto, amx_bf16, avx512_bf16, avx512, avx2, scalar
  int32_t device = 0;        ///< CUDA device ordinal
};

struct BackendInfo {
  std::string name;
  bool available = false;
  std::vector<std::string> reasons;  ///< why not, or what limits it
};

/// Every backend this build knows, available or not.
std::vector<BackendInfo> list_backends();

/// Opens "reference", "cpu" or "sm90"; kUnavailable lists the reasons, kInvalidArgument the known names.
Result<std::unique_ptr<Backend>> open_backend(std::string_view name, const BackendOptions& options = {});

}  // namespace mlaprefill
