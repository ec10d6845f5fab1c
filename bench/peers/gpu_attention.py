"""Attention alone on a GPU: our kernel through the C ABI and cuDNN on the same numbers."""
import math

import capi
import gpu_timing
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

NOPE, ROPE, V_DIM, RANK = 128, 64, 128, 512
QK_DIM = NOPE + ROPE
SCALE = 1.0 / math.sqrt(QK_DIM)
FLOP_PER_PAIR = 2 * (QK_DIM + V_DIM)
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


def keys_of(kv, rope):
    """K [Tk, H, 192] of the up-projection's K_nope and V side by side and the rope key that all heads share."""
    return torch.cat([kv[..., :NOPE], rope.unsqueeze(1).expand(-1, kv.shape[1], -1)], -1)


def outputs_for(q):
    """Output [Tq, H, 128] and LSE [H, Tq] for a call to write."""
    rows, heads, _ = q.shape
    return (torch.full((rows, heads, V_DIM), math.nan, device="cuda", dtype=torch.bfloat16),
            torch.empty(heads, rows, device="cuda"))


class Attention:
    def __init__(self, name, heads):
        self.name, self.heads = name, heads
        self.requests, self.causal = SHAPES[name]
        self.flop = FLOP_PER_PAIR * heads * visible_pairs(self.requests, self.causal)
        new, keys = (sum(lengths) for lengths in zip(*self.requests))
        self.q, self.kv, self.latent = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
                                        for shape in ((new, heads, QK_DIM), (keys, heads, NOPE + V_DIM),
                                                      (keys, RANK + ROPE)))
        self.rope = self.latent[:, RANK:]
        self.k = keys_of(self.kv, self.rope)
        self.v = self.kv[..., NOPE:]  # a strided view of the up-projection, as serving engines pass it
        self.v_contiguous = self.v.contiguous()

    def error(self, out):
        return sampled_error(out, self.q, self.k, self.v, self.requests, self.causal)

    def spans(self):
        return capi.spans_of([(new, keys, keys - new if self.causal else capi.NOT_CAUSAL)
                              for new, keys in self.requests])

    def ours(self, backend):
        """K and V as the up-projection left them, one rope key for all heads. Causal: planned. Every key: spans of a
        call without a plan, which brings its schedule along inside the time."""
        out, lse = outputs_for(self.q)
        tensors = (self.q, self.kv[..., :NOPE], self.v, SCALE)
        if not self.causal:
            spans = self.spans()
            size = backend.attention_workspace_bytes(*tensors, spans, out, lse, self.rope)
            workspace = torch.empty(size, device="cuda", dtype=torch.uint8)

            def unplanned():
                backend.attention(*tensors, spans, out, lse, self.rope, workspace=workspace,
                                  stream=gpu_timing.stream())
                return out

            return gpu_timing.Captured(unplanned)
        dims = capi.sized(capi.Dims, num_heads=self.heads, kv_lora_rank=RANK, qk_nope_head_dim=NOPE,
                          qk_rope_head_dim=ROPE, v_head_dim=V_DIM, softmax_scale=SCALE)
        plan = capi.Plan(backend.library, dims, [new for new, _ in self.requests],
                         [keys - new for new, keys in self.requests], torch.bfloat16,
                         block_table=torch.zeros(len(self.requests), 1 << 10, dtype=torch.int32), block_size=64,
                         device=backend.device_properties())
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
                out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=SCALE)
            return out.transpose(1, 2).flatten(0, 1)

        return {"cuDNN": gpu_timing.Captured(call)}
