"""mlaprefill against what users would run instead on a CPU: PyTorch, same tensors, same thread count, one process.

Everyone's gather, padding, slicing, concatenation, packing and LSE count inside the time. Every contender is first
checked against an fp64 evaluation. Rounds are interleaved; ratios are medians of paired rounds. FLOP: visible pairs
and expanded rows only. Started by bench/peers/run.
"""
import argparse
import json
import math
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import capi
import torch
import torch.nn.functional as F

HEADS, NOPE, ROPE, V_DIM, RANK, BLOCK = 16, 128, 64, 128, 512, 64
QK_DIM = NOPE + ROPE
SCALE = 1.0 / math.sqrt(QK_DIM)


class Attention:
    """Plain attention of `new` queries: causal over themselves, or unmasked over `context` keys."""

    def __init__(self, name, new, context, causal, dtype):
        self.name, self.new, self.causal = name, new, causal
        keys = new if causal else context
        self.q = torch.randn(new, HEADS, QK_DIM).to(dtype)
        self.k = torch.randn(keys, HEADS, QK_DIM).to(dtype)
        kv = torch.randn(keys, HEADS, NOPE + V_DIM).to(dtype)
        self.v = kv[..., NOPE:]  # a strided view of the up-projection, as serving engines pass it
        pairs = new * (new + 1) / 2 if causal else new * keys
        self.flop = 2 * (QK_DIM + V_DIM) * HEADS * pairs
        self.out = torch.empty(new, HEADS, V_DIM, dtype=dtype)
        self.lse = torch.empty(HEADS, new)

    def reference(self):
        q, k, v = (x.double().transpose(0, 1) for x in (self.q, self.k, self.v))
        scores = q @ k.transpose(1, 2) * SCALE
        if self.causal:
            scores.masked_fill_(torch.ones(self.new, self.new, dtype=torch.bool).triu(1), -math.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1)

    def ours(self, backend):
        spans = capi.spans_of([(self.new, self.k.shape[0], 0 if self.causal else capi.NOT_CAUSAL)])

        def run():
            backend.attention(self.q, self.k, self.v, SCALE, spans, self.out, self.lse)
            return self.out

        return run

    def sdpa_padded(self):
        """torch SDPA; its flash kernel wants equal head sizes, so V is padded to 192 and the result sliced."""
        v = F.pad(self.v, (0, QK_DIM - V_DIM))
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (self.q, self.k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=SCALE)
        return out[0].transpose(0, 1)[..., :V_DIM].contiguous()

    def dense_fp32_lse(self):
        return dense_fp32_lse(self.q, self.k, self.v, self.causal)[0]


def dense_fp32_lse(q, k, v, causal):
    """The dense fp32 path with LSE that serving engines run on a CPU for context chunks."""
    qf, kf, vf = (x.transpose(0, 1).float() for x in (q, k, v))
    scores = torch.matmul(qf, kf.transpose(1, 2)) * SCALE
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -math.inf)
    lse = torch.logsumexp(scores, -1)
    out = torch.matmul(torch.softmax(scores, -1), vf)
    return out.transpose(0, 1).to(q.dtype), lse


class Layer:
    """The whole MLA prefill layer of one request: gather, up-projection, attention over context and new tokens."""

    def __init__(self, name, new, context, dtype):
        self.name, self.new, self.context = name, new, context
        blocks = math.ceil(context / BLOCK)
        self.q = torch.randn(new, HEADS, QK_DIM).to(dtype)
        self.latent = torch.randn(new, RANK).to(dtype)
        self.rope = torch.randn(new, ROPE).to(dtype)
        self.cache = torch.randn(blocks, BLOCK, RANK + ROPE).to(dtype)
        self.block_table = torch.randperm(blocks).to(torch.int32).reshape(1, blocks)
        self.weight = (torch.randn(HEADS * (NOPE + V_DIM), RANK) * 0.04).to(dtype)
        keys = context + new
        self.flop = (2 * (QK_DIM + V_DIM) * HEADS * (new * context + new * (new + 1) / 2) +
                     2 * RANK * (NOPE + V_DIM) * HEADS * keys)
        self.out = torch.empty(new, HEADS, V_DIM, dtype=dtype)
        self.lse = torch.empty(HEADS, new)

    def gathered(self):
        return self.cache[self.block_table[0].long()].flatten(0, 1)[:self.context]

    def expand(self, latent, rope, linear=F.linear):
        kv = linear(latent, self.weight).view(-1, HEADS, NOPE + V_DIM)
        k = torch.cat([kv[..., :NOPE], rope.unsqueeze(1).expand(-1, HEADS, -1)], -1)
        return k, kv[..., NOPE:]

    def reference(self):
        rows = torch.cat([self.gathered(), torch.cat([self.latent, self.rope], -1)])
        # K and V are rounded to the working dtype after the up-projection, as every contender does.
        exact = (rows[:, :RANK].double() @ self.weight.double().T).to(self.q.dtype)
        k, v = self.expand(rows[:, :RANK], rows[:, RANK:], lambda x, w: exact)
        q, k, v = (x.double().transpose(0, 1) for x in (self.q, k, v))
        scores = q @ k.transpose(1, 2) * SCALE
        scores.masked_fill_(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1 + self.context), -math.inf)
        return (scores.softmax(-1) @ v).transpose(0, 1)

    def ours(self, backend):
        dims = capi.sized(capi.Dims, num_heads=HEADS, kv_lora_rank=RANK, qk_nope_head_dim=NOPE,
                          qk_rope_head_dim=ROPE, v_head_dim=V_DIM, softmax_scale=SCALE)
        layer = backend.layer(dims, self.weight)
        plan = capi.Plan(backend.library, dims, [self.new], [self.context], self.q.dtype, self.block_table, BLOCK)

        def run():
            layer.run(plan, self.q, self.latent, self.rope, self.cache, self.out, self.lse)
            return self.out

        return run

    def engine_merge(self):
        """Context chunk and new tokens apart, both with LSE, then merged: how serving engines run it."""
        rows = self.gathered()
        k, v = self.expand(self.latent, self.rope)
        new_out, new_lse = dense_fp32_lse(self.q, k, v, True)
        k, v = self.expand(rows[:, :RANK], rows[:, RANK:])
        old_out, old_lse = dense_fp32_lse(self.q, k, v, False)
        top = torch.maximum(new_lse, old_lse)
        new_w, old_w = (new_lse - top).exp(), (old_lse - top).exp()
        total = new_w + old_w
        new_w, old_w = ((w / total).T.unsqueeze(-1) for w in (new_w, old_w))
        return (new_out.float() * new_w + old_out.float() * old_w).to(self.q.dtype)

    def engine_one_shot(self):
        """Context and new tokens together in one SDPA call with an explicit bottom-right mask; no LSE."""
        rows = torch.cat([self.gathered(), torch.cat([self.latent, self.rope], -1)])
        k, v = self.expand(rows[:, :RANK], rows[:, RANK:])
        v = F.pad(v, (0, QK_DIM - V_DIM))
        mask = torch.ones(self.new, self.context + self.new, dtype=torch.bool).tril(self.context)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (self.q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=SCALE)
        return out[0].transpose(0, 1)[..., :V_DIM].contiguous()


class UpProjection:
    """The up-projection of 4,608 rows alone: our layer with a single query against F.linear (oneDNN)."""

    def __init__(self, dtype):
        self.name = "up-projection-4608"
        self.layer = Layer(self.name, 1, 4607, dtype)
        self.rows = torch.cat([self.layer.gathered(), torch.cat([self.layer.latent, self.layer.rope], -1)])
        self.flop = 2 * RANK * (NOPE + V_DIM) * HEADS * 4608

    def reference(self):
        return self.layer.reference()

    def ours(self, backend):
        return self.layer.ours(backend)

    def linear(self):
        return F.linear(self.rows[:, :RANK], self.layer.weight)


def relative_error(out, reference):
    return ((out.double() - reference).norm() / reference.norm()).item()


def measure(subject, contenders, rounds):
    """Seconds of each contender by round, interleaved, order rotated."""
    seconds = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    names = list(contenders)
    for index in range(rounds):
        for name in names[index % len(names):] + names[:index % len(names)]:
            time.sleep(0.01)  # lets the other library's threads fall asleep
            begin = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - begin)
    rows = {}
    for name in names:
        median = statistics.median(seconds[name])
        rows[name] = {"median_seconds": median, "min_seconds": min(seconds[name]),
                      "gflops": subject.flop / median / 1e9,
                      "times_slower_than_ours": statistics.median(
                          t / ours for t, ours in zip(seconds[name], seconds["mlaprefill"]))}
    return rows


def checked(subject, contenders, dtype):
    reference = subject.reference()
    limit = {torch.bfloat16: 1e-2, torch.float32: 1e-5}[dtype]
    errors = {}
    for name, run in contenders.items():
        if name == "torch F.linear":
            continue
        errors[name] = relative_error(run(), reference)
        if not errors[name] < limit:
            sys.exit(f"{subject.name} {name}: relative error must be < {limit}, got {errors[name]}")
    return errors


def contenders_of(subject, backend):
    contenders = {"mlaprefill": subject.ours(backend)}
    if isinstance(subject, Attention):
        contenders["torch SDPA, V padded"] = subject.sdpa_padded
        contenders["torch dense fp32 with LSE"] = subject.dense_fp32_lse
    elif isinstance(subject, Layer):
        contenders["torch layer, LSE and merge"] = subject.engine_merge
        contenders["torch layer, one SDPA call"] = subject.engine_one_shot
    else:
        contenders["torch F.linear"] = subject.linear
    return contenders


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libmlaprefill_c.so")
    parser.add_argument("--threads", default="1,2", help="thread counts, comma separated")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--json", help="result file")
    options = parser.parse_args()

    torch.manual_seed(0)
    library = capi.Library(options.library)
    report = {"schema": "mlaprefill.peers/1", "command": " ".join(sys.argv), "torch": torch.__version__,
              "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(), "mlaprefill": library.version(),
              "machine": cpu_name(), "commit": commit(), "rounds": options.rounds, "heads": HEADS, "results": []}
    for threads in map(int, options.threads.split(",")):
        torch.set_num_threads(threads)
        backend = capi.Backend(library, threads, options.isa)
        report["backend"] = backend.description()
        for dtype in (torch.bfloat16, torch.float32):
            subjects = [Attention("causal-2048", 2048, 0, True, dtype),
                        Attention("full-512x4096", 512, 4096, False, dtype),
                        Layer("layer-512-4096", 512, 4096, dtype), UpProjection(dtype)]
            for subject in subjects:
                contenders = contenders_of(subject, backend)
                errors = checked(subject, contenders, dtype)
                rows = measure(subject, contenders, options.rounds)
                for name, row in rows.items():
                    row = {"shape": subject.name, "dtype": str(dtype).removeprefix("torch."), "threads": threads,
                           "contender": name, "relative_error": errors.get(name), **row}
                    report["results"].append(row)
                    print("{shape:<20} {dtype:<9} {threads} {contender:<28} {gflops:9.1f} GFLOP/s "
                          "{times_slower_than_ours:7.2f}x".format(**row), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def commit():
    folder = pathlib.Path(__file__).resolve().parent
    return subprocess.run(["git", "-C", folder, "describe", "--always", "--dirty"], capture_output=True,
                          text=True).stdout.strip()


if __name__ == "__main__":
    main()
