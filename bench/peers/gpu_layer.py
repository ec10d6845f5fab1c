"""The whole MLA prefill layer on a GPU, ours against the sequence serving engines run, both replayed as CUDA graphs.

Both read the same paged bf16 cache with the same workspace rows, and metadata made once per forward pass stays outside
the time on both sides. Where the engines' sequence leaves a choice, the baseline gets the faster one: its K is put
together by whichever of two ways is quicker here, and it merges with our one-kernel merge.
"""
import math

import capi
import gpu_timing
import torch
import torch.nn.functional as F
from gpu_attention import (FLOP_PER_PAIR, NOPE, QK_DIM, RANK, ROPE, SCALE, V_DIM, keys_of, outputs_for,
                           sampled_error)
from gpu_fa3 import FlashAttention3

BLOCK, WORKSPACE_ROWS = 64, 65536

# name: (new tokens, context) of each request
SHAPES = {
    "8192 / 0": [(8192, 0)],
    "8 x 1024 / 0": [(1024, 0)] * 8,
    "32 x 256 / 0": [(256, 0)] * 32,
    "8130 / 16384": [(8130, 16384)],
    "8130 / 41000": [(8130, 41000)],
    "8192 / 32768": [(8192, 32768)],
    "2048 / 32768": [(2048, 32768)],
    "512 / 32768": [(512, 32768)],
    "2500 / 100000": [(2500, 100000)],
    "700 / 100000": [(700, 100000)],
    "3 x 2106 / 60000, 20000, 8000": [(2106, 60000), (2106, 20000), (2106, 8000)],
    "8 x (1024 / 4096)": [(1024, 4096)] * 8,
    "32 x (64 / 2048)": [(64, 2048)] * 32,
    "7 / 8185 + 4096 / 0": [(7, 8185), (4096, 0)],
}


def concatenate_by_copies(kv, rope):
    k = torch.empty(*kv.shape[:2], QK_DIM, device="cuda", dtype=kv.dtype)
    k[..., :NOPE] = kv[..., :NOPE]
    k[..., NOPE:] = rope.unsqueeze(1)
    return k


class Chunk:
    """One context pass of the engines' greedy plan: some keys of neighbouring requests."""

    def __init__(self, layer, spans):
        first, last = spans[0].request, spans[-1].request
        keys = {span.request: (span.key_begin, span.key_end) for span in spans}
        lengths = [(layer.requests[r][0], end - begin)
                   for r in range(first, last + 1) for begin, end in [keys.get(r, (0, 0))]]
        self.rows = slice(layer.starts[first], layer.starts[last + 1])
        self.slots = torch.cat([layer.slots[span.request][span.key_begin:span.key_end] for span in spans])
        self.attention = FlashAttention3(lengths, False, SCALE)


class Layer:
    def __init__(self, name, heads):
        self.name, self.heads, self.requests = name, heads, SHAPES[name]
        new, context = ([lengths[i] for lengths in self.requests] for i in range(2))
        self.starts = [sum(new[:r]) for r in range(len(new) + 1)]
        tokens = self.starts[-1]
        pairs = sum(n * c + n * (n + 1) // 2 for n, c in self.requests)
        self.flop = FLOP_PER_PAIR * heads * pairs + 2 * RANK * (NOPE + V_DIM) * heads * (tokens + sum(context))

        blocks = [-(-c // BLOCK) for c in context]
        order = torch.randperm(max(1, sum(blocks)), dtype=torch.int32)
        self.block_table = torch.zeros(len(new), max(1, max(blocks)), dtype=torch.int32)
        self.slots = []
        for r, ids in enumerate(order[:sum(blocks)].split(blocks)):
            self.block_table[r, :len(ids)] = ids
            slots = (ids[:, None].long() * BLOCK + torch.arange(BLOCK)).flatten()
            self.slots.append(slots[:context[r]].cuda())

        def normal(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        self.q = normal(tokens, heads, QK_DIM)
        self.latent, self.rope = normal(tokens, RANK), normal(tokens, ROPE)
        self.cache = normal(len(order), BLOCK, RANK + ROPE)
        self.weight = normal(heads * (NOPE + V_DIM), RANK) / math.sqrt(RANK)
        self.dims = capi.sized(capi.Dims, num_heads=heads, kv_lora_rank=RANK, qk_nope_head_dim=NOPE,
                               qk_rope_head_dim=ROPE, v_head_dim=V_DIM, softmax_scale=SCALE)

    def plan(self, backend, **options):
        return capi.Plan(backend.library, self.dims, [n for n, _ in self.requests], [c for _, c in self.requests],
                         torch.bfloat16, self.block_table, BLOCK, workspace_tokens=WORKSPACE_ROWS, **options)

    def error(self, out):
        """Against fp64 over K and V of bf16, two heads of the first and the last request."""
        worst = 0.0
        for r in {0, len(self.requests) - 1}:
            new, context = self.requests[r]
            rows = slice(self.starts[r], self.starts[r + 1])
            cached = self.cache.view(-1, RANK + ROPE)[self.slots[r]]
            latent = torch.cat([cached[:, :RANK], self.latent[rows]])
            rope = torch.cat([cached[:, RANK:], self.rope[rows]]).unsqueeze(1).expand(-1, 2, -1)
            weight = self.weight.view(self.heads, NOPE + V_DIM, RANK)[[0, -1]]
            kv = torch.einsum("tl,hdl->thd", latent.double(), weight.double()).bfloat16()
            k = torch.cat([kv[..., :NOPE], rope], -1)
            worst = max(worst, sampled_error(out[rows][:, [0, -1]], self.q[rows][:, [0, -1]], k, kv[..., NOPE:],
                                             [(new, context + new)], True))
        return worst

    def ours(self, backend):
        plan = self.plan(backend, device=backend.device_properties())
        layer = backend.layer(self.dims, self.weight)
        workspace = torch.empty(plan.info.workspace_bytes, device="cuda", dtype=torch.uint8)
        out, lse = outputs_for(self.q)
        backend.upload(plan, workspace, gpu_timing.stream())
        torch.cuda.synchronize()

        def run():
            layer.run(plan, self.q, self.latent, self.rope, self.cache, out, lse, workspace, gpu_timing.stream())
            return out

        return gpu_timing.Captured(run)

    def engine(self, backend, concatenate):
        """New tokens causal on their own, context chunks unmasked, all with LSE; each chunk is merged as it comes."""
        plan = self.plan(backend, mode=capi.Plan.VLLM)
        chunks = [Chunk(self, plan.spans(one)) for one in plan.passes() if one.kind == capi.Plan.CONTEXT_PASS]
        among_new = FlashAttention3([(n, n) for n, _ in self.requests], True, SCALE)
        rows = max((len(chunk.slots) for chunk in chunks), default=0)
        workspace = torch.empty(rows, RANK + ROPE, device="cuda", dtype=torch.bfloat16)
        cache = self.cache.view(-1, RANK + ROPE)

        def attend(attention, q, latent, rope):
            kv = F.linear(latent, self.weight).view(-1, self.heads, NOPE + V_DIM)
            return attention(q, concatenate(kv, rope), kv[..., NOPE:])

        def run():
            out, lse = attend(among_new, self.q, self.latent, self.rope)
            for chunk in chunks:
                gathered = workspace[:len(chunk.slots)]
                torch.index_select(cache, 0, chunk.slots, out=gathered)
                part = attend(chunk.attention, self.q[chunk.rows], gathered[:, :RANK], gathered[:, RANK:])
                so_far = (out[chunk.rows], lse[:, chunk.rows])
                backend.merge([so_far, part], *so_far, stream=gpu_timing.stream())
            return out

        return gpu_timing.Captured(run)

    def faster_concatenation(self, timer):
        """(name, function) of the quicker way to put K together, at this shape's largest number of rows."""
        rows = min(WORKSPACE_ROWS, max(self.starts[-1], sum(c for _, c in self.requests)))
        kv = torch.randn(rows, self.heads, NOPE + V_DIM, device="cuda", dtype=torch.bfloat16)
        rope = torch.randn(rows, RANK + ROPE, device="cuda", dtype=torch.bfloat16)[:, RANK:]
        ways = {"two copies": concatenate_by_copies, "torch.cat": keys_of}
        times = {name: min(timer.block(lambda way=way: way(kv, rope), 3)[0]) for name, way in ways.items()}
        best = min(times, key=times.get)
        return best, ways[best]

    def contenders(self, backend, timer):
        """{name: call}, and how the engines' sequence puts K together."""
        way, concatenate = self.faster_concatenation(timer)
        return {"mlaprefill": self.ours(backend), "engine sequence": self.engine(backend, concatenate)}, way
