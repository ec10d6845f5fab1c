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


class Backend:
    def __init__(self, library, threads, isa="auto"):
        self._library = library
        self._handle = c.c_void_p()
        options = sized(BackendOptions, isa=isa.encode(), num_threads=threads)
        library.call("mlaprefill_backend_open", b"cpu", c.byref(options), c.byref(self._handle))

    def description(self):
        text = c.create_string_buffer(4096)
        self._library.call("mlaprefill_backend_description", self._handle, text, c.c_size_t(4096), None)
        return text.value.decode()

    def attention(self, q, k, v, scale, causal_offset, out, lse_out):
        """One request: q [Tq, H, Dqk], k [Tk, H, Dqk], v [Tk, H, Dv] into out [Tq, H, Dv] and lse_out [H, Tq]."""
        span = Span(0, q.shape[0], 0, k.shape[0], causal_offset, 0, 0)
        args = sized(AttentionArgs, q=tensor(q), k=tensor(k), v=tensor(v), spans=c.pointer(span), num_spans=1,
                     softmax_scale=scale, out=tensor(out), lse=lse(lse_out))
        self._library.call("mlaprefill_attention", self._handle, c.byref(args), None)

    def layer(self, dims, kv_b_proj):
        return Layer(self._library, self._handle, dims, kv_b_proj)


class Layer:
    def __init__(self, library, backend, dims, kv_b_proj):
        self._library = library
        self._dims = dims
        self._dtype = kv_b_proj.dtype
        self._handle = c.c_void_p()
        weight = tensor(kv_b_proj)
        library.call("mlaprefill_layer_create", backend, c.byref(dims), c.byref(weight), c.byref(self._handle))

    def plan(self, new_tokens, context, block_table, block_size):
        """A plan of one request, as serving engines make it: once per forward pass."""
        start = torch.tensor([0, new_tokens], dtype=torch.int32)
        lens = torch.tensor([context], dtype=torch.int32)
        batch = sized(Batch, num_requests=1, query_start_loc=start.data_ptr(), context_lens=lens.data_ptr(),
                      block_table=block_table.data_ptr(), block_table_rows=1, block_table_cols=block_table.shape[1],
                      block_table_row_stride=block_table.shape[1], num_cache_blocks=-1, block_size=block_size)
        options = sized(PlanOptions, working_dtype=DTYPES[self._dtype], workspace_tokens=65536, max_requests=1,
                        max_query_tokens=1 << 20, max_context_tokens_per_request=1 << 20)
        plan = c.c_void_p()
        self._library.call("mlaprefill_plan_create", c.byref(self._dims), c.byref(batch), c.byref(options), None,
                           c.byref(plan))
        return plan

    def run(self, plan, q, latent, rope, cache, out, lse_out):
        args = sized(LayerArgs, q=tensor(q), kv_latent=tensor(latent), k_rope=tensor(rope),
                     cache=KvCache(tensor(cache), 1.0, 0), out=tensor(out), lse=lse(lse_out))
        self._library.call("mlaprefill_layer_run", self._handle, plan, c.byref(args), None)
