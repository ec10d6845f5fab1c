"""The part of the C ABI (include/mlaprefill/c_api.h) the comparisons need, through ctypes. Tensors are torch's."""
import ctypes as c

import torch

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
NOT_CAUSAL = (2**63 - 1) // 4


class Error(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("message_length", c.c_size_t), ("code", c.c_int32),
                ("message", c.c_char * 1000)]


class Dims(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("num_heads", c.c_int32), ("kv_lora_rank", c.c_int32),
                ("qk_nope_head_dim", c.c_int32), ("qk_rope_head_dim", c.c_int32), ("v_head_dim", c.c_int32),
                ("softmax_scale", c.c_double)]


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("dtype", c.c_int32), ("rank", c.c_int32), ("shape", c.c_int64 * 4),
                ("stride", c.c_int64 * 4)]


class Lse(c.Structure):
    _fields_ = [("data", c.c_void_p), ("head_stride", c.c_int64), ("token_stride", c.c_int64), ("base", c.c_int32),
                ("reserved", c.c_int32)]


class Workspace(c.Structure):
    _fields_ = [("data", c.c_void_p), ("size_bytes", c.c_int64)]


class Batch(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("num_requests", c.c_int64), ("query_start_loc", c.c_void_p),
                ("context_lens", c.c_void_p), ("query_lens", c.c_void_p), ("seq_lens", c.c_void_p),
                ("block_table", c.c_void_p), ("block_table_rows", c.c_int64), ("block_table_cols", c.c_int64),
                ("block_table_row_stride", c.c_int64), ("num_cache_blocks", c.c_int64), ("block_size", c.c_int32)]


class Span(c.Structure):
    _fields_ = [("q_row", c.c_int64), ("q_len", c.c_int64), ("k_row", c.c_int64), ("k_len", c.c_int64),
                ("causal_offset", c.c_int64), ("resume", c.c_int32), ("store_state", c.c_int32)]


class AttentionArgs(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("q", Tensor), ("k", Tensor), ("k_rope", Tensor), ("v", Tensor),
                ("spans", c.POINTER(Span)), ("num_spans", c.c_int64), ("softmax_scale", c.c_double), ("out", Tensor),
                ("lse", Lse), ("state_out", c.c_void_p), ("state_max", c.c_void_p), ("state_sum", c.c_void_p),
                ("plan", c.c_void_p), ("pass_index", c.c_int64), ("workspace", Workspace), ("invariant", c.c_int32)]


class KvCache(c.Structure):
    _fields_ = [("data", Tensor), ("scale", c.c_float), ("reserved", c.c_int32)]


class LayerArgs(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("q", Tensor), ("kv_latent", Tensor), ("k_rope", Tensor),
                ("cache", KvCache), ("out", Tensor), ("lse", Lse), ("workspace", Workspace), ("path", c.c_int32)]


class PlanOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("mode", c.c_int32), ("working_dtype", c.c_int32),
                ("workspace_tokens", c.c_int64), ("strict", c.c_int32), ("invariant", c.c_int32),
                ("max_requests", c.c_int64), ("max_query_tokens", c.c_int64),
                ("max_context_tokens_per_request", c.c_int64), ("bounds", c.c_void_p)]


class DeviceProperties(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("num_processors", c.c_int32), ("query_tile_tokens", c.c_int32),
                ("key_tile_tokens", c.c_int32), ("row_alignment_rows", c.c_int32)]


class PlanInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("fingerprint", c.c_uint64), ("num_requests", c.c_int64),
                ("num_query_rows", c.c_int64), ("num_passes", c.c_int64), ("num_spans", c.c_int64),
                ("num_tiles", c.c_int64), ("expanded_rows", c.c_int64), ("visible_pairs", c.c_int64),
                ("attention_flop", c.c_double), ("expand_flop", c.c_double), ("metadata_offset_bytes", c.c_int64),
                ("metadata_bytes", c.c_int64), ("latent_offset_bytes", c.c_int64),
                ("expanded_offset_bytes", c.c_int64), ("state_out_offset_bytes", c.c_int64),
                ("state_max_offset_bytes", c.c_int64), ("state_sum_offset_bytes", c.c_int64),
                ("workspace_bytes", c.c_int64), ("verdict", c.c_int32)]


class PassInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("rows", c.c_int64), ("span_begin", c.c_int64),
                ("span_end", c.c_int64), ("tile_begin", c.c_int64), ("tile_end", c.c_int64), ("kind", c.c_int32),
                ("all_rows_active", c.c_int32)]


class SpanInfo(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("key_begin", c.c_int64), ("key_end", c.c_int64),
                ("row_begin", c.c_int64), ("request", c.c_int32), ("continuation", c.c_int32),
                ("first", c.c_int32), ("last", c.c_int32)]


class Partial(c.Structure):
    _fields_ = [("out", Tensor), ("lse", Lse)]


class BackendOptions(c.Structure):
    _fields_ = [("struct_size", c.c_size_t), ("isa", c.c_char_p), ("num_threads", c.c_int32), ("device", c.c_int32)]


def sized(kind, **fields):
    return kind(struct_size=c.sizeof(kind), **fields)


def tensor(t):
    view = Tensor(t.data_ptr(), DTYPES[t.dtype], t.dim())
    view.shape[:t.dim()] = list(t.shape)
    view.stride[:t.dim()] = list(t.stride())
    return view


def lse(t):
    return Lse(t.data_ptr(), t.stride(0), t.stride(1), 0, 0)


def space(t):
    """A workspace: a contiguous uint8 tensor, or none."""
    return Workspace() if t is None else Workspace(t.data_ptr(), t.numel())


class Library:
    def __init__(self, path):
        self._lib = c.CDLL(path)
        self._lib.mlaprefill_version.restype = c.c_char_p

    def version(self):
        return self._lib.mlaprefill_version().decode()

    def call(self, name, *args):
        error = sized(Error)
        if getattr(self._lib, name)(*args, c.byref(error)) != 0:
            raise RuntimeError(f"{name}: {error.message.decode()}")


class Plan:
    """A plan of one forward pass. Block tables are int32 [requests, columns] on the host."""

    BRIDGE, VLLM = 0, 2
    CONTEXT_PASS = 0

    def __init__(self, library, dims, query_lens, context_lens, dtype, block_table=None, block_size=0, device=None,
                 mode=BRIDGE, workspace_tokens=65536):
        self._library = library
        start = torch.tensor([0] + query_lens).cumsum(0).to(torch.int32)
        lens = torch.tensor(context_lens, dtype=torch.int32)
        batch = sized(Batch, num_requests=len(query_lens), query_start_loc=start.data_ptr(),
                      context_lens=lens.data_ptr(), num_cache_blocks=-1, block_size=block_size)
        if block_table is not None:
            batch.block_table = block_table.data_ptr()
            batch.block_table_rows, batch.block_table_cols = block_table.shape
            batch.block_table_row_stride = block_table.stride(0)
        options = sized(PlanOptions, mode=mode, working_dtype=DTYPES[dtype], workspace_tokens=workspace_tokens,
                        max_requests=1 << 16, max_query_tokens=1 << 20, max_context_tokens_per_request=1 << 20)
        self.handle = c.c_void_p()
        library.call("mlaprefill_plan_create", c.byref(dims), c.byref(batch), c.byref(options),
                     None if device is None else c.byref(device), c.byref(self.handle))
        self.info = sized(PlanInfo)
        library.call("mlaprefill_plan_get_info", self.handle, c.byref(self.info))

    def passes(self):
        return [self._item("pass", PassInfo, index) for index in range(self.info.num_passes)]

    def spans(self, one):
        return [self._item("span", SpanInfo, index) for index in range(one.span_begin, one.span_end)]

    def _item(self, name, kind, index):
        item = sized(kind)
        self._library.call(f"mlaprefill_plan_get_{name}", self.handle, c.c_int64(index), c.byref(item))
        return item


def spans_of(requests):
    """AttentionSpan array of requests (new tokens, keys, causal offset) that follow one another."""
    spans, q_row, k_row = (Span * len(requests))(), 0, 0
    for span, (new, keys, offset) in zip(spans, requests):
        span.q_row, span.q_len, span.k_row, span.k_len, span.causal_offset = q_row, new, k_row, keys, offset
        q_row, k_row = q_row + new, k_row + keys
    return spans


class Backend:
    """`stream` of every call is a cudaStream_t as an integer; a CPU backend ignores it."""

    def __init__(self, library, threads=0, isa="auto", name="cpu"):
        self.library = library
        self._handle = c.c_void_p()
        options = sized(BackendOptions, isa=isa.encode(), num_threads=threads)
        library.call("mlaprefill_backend_open", name.encode(), c.byref(options), c.byref(self._handle))

    def description(self):
        text = c.create_string_buffer(4096)
        self.library.call("mlaprefill_backend_description", self._handle, text, c.c_size_t(4096), None)
        return text.value.decode()

    def device_properties(self):
        device = sized(DeviceProperties)
        self.library.call("mlaprefill_backend_device_properties", self._handle, c.byref(device))
        return device

    def upload(self, plan, workspace, stream=None):
        self.library.call("mlaprefill_upload", self._handle, plan.handle, space(workspace), c.c_void_p(stream))

    def attention(self, q, k, v, scale, spans, out, lse_out, k_rope=None, plan=None, workspace=None, stream=None):
        """Ragged attention: q [Tq, H, Dqk], k [Tk, H, Dqk] (or without its last dims, which k_rope [Tk, rope]
        holds for every head), v [Tk, H, Dv] into out [Tq, H, Dv] and lse_out [H, Tq]. Either `spans`, or pass 0
        of an uploaded plan."""
        args = self._attention_args(q, k, v, scale, spans, out, lse_out, k_rope, plan, workspace)
        self.library.call("mlaprefill_attention", self._handle, c.byref(args), c.c_void_p(stream))

    def attention_workspace_bytes(self, q, k, v, scale, spans, out, lse_out, k_rope=None):
        args = self._attention_args(q, k, v, scale, spans, out, lse_out, k_rope, None, None)
        size = c.c_int64()
        self.library.call("mlaprefill_attention_workspace_bytes", self._handle, c.byref(args), c.byref(size))
        return size.value

    @staticmethod
    def _attention_args(q, k, v, scale, spans, out, lse_out, k_rope, plan, workspace):
        args = sized(AttentionArgs, q=tensor(q), k=tensor(k), v=tensor(v), softmax_scale=scale, out=tensor(out),
                     lse=lse(lse_out), workspace=space(workspace))
        if spans is not None:
            args.spans, args.num_spans = spans, len(spans)
        if k_rope is not None:
            args.k_rope = tensor(k_rope)
        if plan is not None:
            args.plan = plan.handle
        return args

    def merge(self, partials, out, lse_out, stream=None):
        """partials: pairs of out [T, H, D] and LSE [H, T]; may run in place."""
        array = (Partial * len(partials))(*(Partial(tensor(o), lse(l)) for o, l in partials))
        self.library.call("mlaprefill_merge", self._handle, array, c.c_int64(len(partials)), c.byref(tensor(out)),
                          c.byref(lse(lse_out)), c.c_void_p(stream))

    def layer(self, dims, kv_b_proj):
        return Layer(self.library, self._handle, dims, kv_b_proj)


class Layer:
    def __init__(self, library, backend, dims, kv_b_proj):
        self._library = library
        self._handle = c.c_void_p()
        weight = tensor(kv_b_proj)
        library.call("mlaprefill_layer_create", backend, c.byref(dims), c.byref(weight), c.byref(self._handle))

    def run(self, plan, q, latent, rope, cache, out, lse_out, workspace=None, stream=None):
        args = sized(LayerArgs, q=tensor(q), kv_latent=tensor(latent), k_rope=tensor(rope), out=tensor(out),
                     lse=lse(lse_out), workspace=space(workspace))
        args.cache = KvCache(Tensor() if cache is None else tensor(cache), 1.0, 0)
        self._library.call("mlaprefill_layer_run", self._handle, plan.handle, c.byref(args), c.c_void_p(stream))
