"""Attention alone on a GPU: our kernel through the C ABI and cuDNN on the same numbers."""
import math
import typing

import capi
import gpu_timing
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel



class HeadDims(typing.NamedTuple):
    nope: int
    rope: int
    v: int

    @property
    def qk(self):
        return self.nope + self.rope

    @property
    def scale(self):
        return 1.0 / math.sqrt(self.qk)

    @property
    def flop_per_pair(self):
        return 2 * (self.qk + self.v)


NARROW, WIDE = HeadDims(128, 64, 128), HeadDims(192, 64, 256)
NOPE, ROPE, V_DIM = NARROW
QK_DIM, SCALE, FLOP_PER_PAIR = NARROW.qk, NARROW.scale, NARROW.flop_per_pair
RANK = 512
MIX = [4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1]

# name: requests as (new tokens, keys), causal (bottom-right) or every key
SHAPES = {
    "causal 1x8192": ([(8192, 8192)], True),
    "context 8192x32768": ([(8192, 32768)], False),
    "bottom-right 4x(2048 of 16384)": ([(2048, 16384)] * 4, True),
    "causal 8x1024": ([(1024, 1024)] * 8, True),
    "causal 32x256": ([(256, 256)] * 32, True),
    "context 32x(64x2048)": ([(64, 2048)] * 32, False),
    "mix 4096..1, 21 rows": ([(n, n) for n in MIX], True),
}
# Fewer tiles than the device has processors, or one request with most of the keys.
FEW_SHAPES = {
    "64 of 100064": ([(64, 100064)], True),
    "200 of 20200": ([(200, 20200)], True),
    "512 of 33280": ([(512, 33280)], True),
    "2500 of 102500": ([(2500, 102500)], True),
    "100, 300, 20, 700 of 30100, 4300, 100020, 9700": (
        [(100, 30100), (300, 4300), (20, 100020), (700, 9700)], True),
    "8128 of 8128, 64 of 100064": ([(8128, 8128), (64, 100064)], True),
}
FEW_HEADS = (16, 8)
WIDE_SHAPES = ("causal 1x8192", "context 8192x32768", "causal 8x1024", "context 32x(64x2048)")


def visible_pairs(requests, causal):
    return sum(new * keys - (new * (new - 1) // 2 if causal else 0) for new, keys in requests)


def sampled_error(out, q, k, v, requests, causal, scale=SCALE):
    """Largest relative error of a row against fp64, on rows of the first, middle and last request, first and last
    head. k, v: [Tk, H, D]."""
    worst, q_row, k_row = 0.0, 0, 0
    sampled = {0, len(requests) // 2, len(requests) - 1}
    for index, (new, keys) in enumerate(requests):
        if index in sampled:
            rows = torch.unique(torch.linspace(0, new - 1, 64, device=q.device).long())
            for head in (0, q.shape[1] - 1):
                key, value = (x[k_row:k_row + keys, head].double() for x in (k, v))
                scores = q[q_row + rows, head].double() @ key.T * scale
                if causal:
                    seen = torch.arange(keys, device=q.device) <= (rows + keys - new)[:, None]
                    scores.masked_fill_(~seen, -math.inf)
                exact = scores.softmax(-1) @ value
                error = ((out[q_row + rows, head].double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max().item()
                worst = max(worst, math.inf if math.isnan(error) else error)
        q_row, k_row = q_row + new, k_row + keys
    return worst


def keys_of(kv, rope, nope=NOPE):
    """K [Tk, H, qk] of the up-projection's K_nope and V side by side and the rope key that all heads share."""
    return torch.cat([kv[..., :nope], rope.unsqueeze(1).expand(-1, kv.shape[1], -1)], -1)


def outputs_for(q, v_dim=V_DIM):
    """Output [Tq, H, v_dim] and LSE [H, Tq] for a call to write."""
    rows, heads, _ = q.shape
    return (torch.full((rows, heads, v_dim), math.nan, device="cuda", dtype=torch.bfloat16),
            torch.empty(heads, rows, device="cuda"))


class Attention:
    def __init__(self, name, heads, dims=NARROW):
        self.name, self.heads, self.dims = name, heads, dims
        self.requests, self.causal = (SHAPES | FEW_SHAPES)[name]
        self.flop = dims.flop_per_pair * heads * visible_pairs(self.requests, self.causal)
        new, keys = (sum(lengths) for lengths in zip(*self.requests))
        self.q, self.kv, self.latent = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
                                        for shape in ((new, heads, dims.qk), (keys, heads, dims.nope + dims.v),
                                                      (keys, RANK + dims.rope)))
        self.rope = self.latent[:, RANK:]
        self.k = keys_of(self.kv, self.rope, dims.nope)
        self.v = self.kv[..., dims.nope:]  # a strided view of the up-projection, as serving engines pass it
        self.v_contiguous = self.v.contiguous()

    def error(self, out):
        return sampled_error(out, self.q, self.k, self.v, self.requests, self.causal, self.dims.scale)

    def spans(self):
        return capi.spans_of([(new, keys, keys - new if self.causal else capi.NOT_CAUSAL)
                              for new, keys in self.requests])

    def ours(self, backend):
        """K and V as the up-projection left them, one rope key for all heads. Causal: planned. Every key: spans of a
        call without a plan, which brings its schedule along inside the time."""
        out, lse = outputs_for(self.q, self.dims.v)
        tensors = (self.q, self.kv[..., :self.dims.nope], self.v, self.dims.scale)
        if not self.causal:
            spans = self.spans()
            size = backend.attention_workspace_bytes(*tensors, spans, out, lse, self.rope)
            workspace = torch.empty(size, device="cuda", dtype=torch.uint8)

            def unplanned():
                backend.attention(*tensors, spans, out, lse, self.rope, workspace=workspace,
                                  stream=gpu_timing.stream())
                return out

            return gpu_timing.Captured(unplanned)
        dims = capi.sized(capi.Dims, num_heads=self.heads, kv_lora_rank=RANK, qk_nope_head_dim=self.dims.nope,
                          qk_rope_head_dim=self.dims.rope, v_head_dim=self.dims.v, softmax_scale=self.dims.scale)
        plan = capi.Plan(backend.library, dims, [new for new, _ in self.requests],
                         [keys - new for new, keys in self.requests], torch.bfloat16,
                         block_table=torch.zeros(len(self.requests), 1 << 11, dtype=torch.int32), block_size=64,
                         device=backend.device_properties(), workspace_tokens=1 << 18)  # one pass
        workspace = torch.empty(plan.info.workspace_bytes, device="cuda", dtype=torch.uint8)
        backend.upload(plan, workspace, gpu_timing.stream())
        torch.cuda.synchronize()

        def planned():
            backend.attention(*tensors, None, out, lse, self.rope, plan, workspace, gpu_timing.stream())
            return out

        return gpu_timing.Captured(planned)

    def cudnn(self):
        """{name: call} of cuDNN through PyTorch, where the requests' lengths are equal and its mask is ours."""
        new, keys = self.requests[0]
        if len(set(self.requests)) > 1 or (self.causal and new != keys):
            return {}
        q, k, v = (x.view(len(self.requests), rows, *x.shape[1:]).transpose(1, 2)
                   for x, rows in ((self.q, new), (self.k, keys), (self.v_contiguous, keys)))

        def call():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.dims.scale)
            return out.transpose(1, 2).flatten(0, 1)

        return {"cuDNN": gpu_timing.Captured(call)}
