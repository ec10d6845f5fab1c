"""TFLOP/s of the Hopper attention kernel beside cuDNN (PyTorch SDPA) and cuBLAS, interleaved in one process.

usage: attention_bench.py --json OUT.json NAME=LIBRARY.so [NAME=LIBRARY.so ...]

Every library is one build of bench/gpu/attention_capi.cc. 640 FLOP per visible (query, key, head); random
normal bf16; warm L2; medians of interleaved rounds, each launching back to back for about 10 ms after as
much warm-up as --warm-ms says; the order is drawn anew each round, since what ran before decides the clock.
"""
import argparse
import ctypes
import json
import random
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

NOT_CAUSAL = 1 << 40
MIX = [4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1]


class Shape:
    """`requests`: (query length, key length); `causal` is bottom-right."""

    def __init__(self, name, requests, causal, dense=False):
        self.name, self.requests, self.causal, self.dense = name, requests, causal, dense

    def pairs(self):
        total = 0
        for q, k in self.requests:
            total += sum(min(k, k - q + i + 1) for i in range(q)) if self.causal else q * k
        return total


SHAPES = [
    Shape("causal 1x8192", [(8192, 8192)], True, dense=True),
    Shape("context 8192x32768", [(8192, 32768)], False, dense=True),
    Shape("bottom-right 4x(2048 of 16384)", [(2048, 16384)] * 4, True),
    Shape("causal 8x1024", [(1024, 1024)] * 8, True, dense=True),
    Shape("causal 32x256", [(256, 256)] * 32, True, dense=True),
    Shape("context 32x(64x2048)", [(64, 2048)] * 32, False, dense=True),
    Shape("mix 4096..1", [(n, n) for n in MIX], True),
]


class Kernel:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.attention_bench_create.restype = ctypes.c_void_p

    def prepare(self, shape, heads, t):
        spans, q_row, k_row = [], 0, 0
        for q, k in shape.requests:
            spans += [q_row, q, k_row, k, k - q if shape.causal else NOT_CAUSAL]
            q_row, k_row = q_row + q, k_row + k
        array = (ctypes.c_int64 * len(spans))(*spans)
        pointer = lambda x: ctypes.c_void_p(x.data_ptr())
        runner = self.lib.attention_bench_create(
            heads, pointer(t.q), pointer(t.kv), pointer(t.rope), ctypes.c_int64(64), pointer(t.out),
            pointer(t.lse), ctypes.c_int64(q_row), ctypes.c_float(192 ** -0.5), array,
            ctypes.c_int64(len(shape.requests)))
        assert runner, "create failed"
        runner = ctypes.c_void_p(runner)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def call():
            assert self.lib.attention_bench_launch(runner, stream) == 0

        return call


class Tensors:
    def __init__(self, shape, heads):
        q_rows = sum(q for q, _ in shape.requests)
        k_rows = sum(k for _, k in shape.requests)
        make = lambda *s: torch.randn(*s, device="cuda", dtype=torch.bfloat16)
        self.q, self.kv, self.rope = make(q_rows, heads, 192), make(k_rows, heads, 256), make(k_rows, 64)
        self.out = torch.empty(q_rows, heads, 128, device="cuda", dtype=torch.bfloat16)
        self.lse = torch.empty(heads, q_rows, device="cuda", dtype=torch.float32)


def check(shape, heads, t):
    """Last rows of the first and last request, head 0 and the last, against fp64."""
    worst = 0.0
    q_row = k_row = 0
    for index, (q, k) in enumerate(shape.requests):
        if index in (0, len(shape.requests) - 1):
            for head in (0, heads - 1):
                n = min(q, 64)
                rows = slice(q_row + q - n, q_row + q)
                keys = slice(k_row, k_row + k)
                full = torch.cat([t.kv[keys, head, :128], t.rope[keys]], 1).double()
                s = t.q[rows, head].double() @ full.T * 192 ** -0.5
                if shape.causal:
                    limit = torch.arange(k - n, k, device="cuda")[:, None]
                    s.masked_fill_(torch.arange(k, device="cuda")[None] > limit, float("-inf"))
                want = torch.softmax(s, 1) @ t.kv[keys, head, 128:].double()
                got = t.out[rows, head].double()
                error = ((got - want).norm() / want.norm()).item()
                worst = max(worst, error if error == error else float("inf"))
        q_row, k_row = q_row + q, k_row + k
    return worst


def cudnn(shape, heads, t):
    if not shape.dense:
        return None
    n, (q, k) = len(shape.requests), shape.requests[0]
    key = torch.cat([t.kv[..., :128], t.rope[:, None].expand(-1, heads, -1)], -1).view(n, k, heads, 192).transpose(1, 2)
    value = t.kv[..., 128:].contiguous().view(n, k, heads, 128).transpose(1, 2)
    query = t.q.view(n, q, heads, 192).transpose(1, 2)

    def call():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            F.scaled_dot_product_attention(query, key, value, is_causal=shape.causal)

    call()
    return call


def milliseconds(call, launches):
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(launches):
        call()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / launches


def clock_mhz():
    text = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,power.draw,driver_version", "--format=csv,noheader"],
                          capture_output=True, text=True).stdout
    return text.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", required=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--heads", default="128,16")
    parser.add_argument("--warm-ms", type=int, default=50, help="of the same contender, before each measurement")
    parser.add_argument("--shapes", default="")
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("libraries", nargs="+")
    args = parser.parse_args()
    kernels = {name: Kernel(path) for name, path in (item.split("=") for item in args.libraries)}
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    rows = []
    for heads in [int(h) for h in args.heads.split(",")]:
        for shape in SHAPES:
            if args.shapes and not any(s in shape.name for s in args.shapes.split(",")):
                continue
            t = Tensors(shape, heads)
            calls, errors = {}, {}
            for name, kernel in kernels.items():
                call = kernel.prepare(shape, heads, t)
                t.out.fill_(float("nan"))
                call()
                torch.cuda.synchronize()
                errors[name] = check(shape, heads, t)
                calls[name] = call
            if not args.no_cudnn:
                try:
                    dense = cudnn(shape, heads, t)
                    if dense:
                        calls["cudnn"] = dense
                except RuntimeError as failure:
                    print("cudnn:", str(failure).splitlines()[0])
            calls["cublas 8192^3"] = lambda: torch.mm(a, b)
            times = {name: [] for name in calls}
            counts = {}
            for name, call in calls.items():
                counts[name] = max(3, min(400, int(10 / max(1e-3, milliseconds(call, 3)))))
            for _ in range(args.rounds):
                for name in random.sample(list(calls), len(calls)):
                    for _ in range(counts[name] * args.warm_ms // 10):
                        calls[name]()
                    times[name].append(milliseconds(calls[name], counts[name]))
            flop = 640.0 * heads * shape.pairs()
            row = {"shape": shape.name, "heads": heads, "flop": flop, "errors": errors, "ms": {}, "tflops": {}}
            for name, values in times.items():
                median = statistics.median(values)
                work = 2 * 8192.0 ** 3 if name.startswith("cublas") else flop
                row["ms"][name] = median
                row["tflops"][name] = work / median / 1e9
            rows.append(row)
            print(f"{shape.name:32} H{heads:<4}", " ".join(f"{n} {v:.0f}" for n, v in row["tflops"].items()),
                  " err", " ".join(f"{e:.1e}" for e in errors.values()), flush=True)
            del t, calls
    result = {"schema": "mlaprefill.gpu_attention_bench/1", "command": " ".join(sys.argv), "torch": torch.__version__,
              "gpu": torch.cuda.get_device_name(), "clock_power_driver": clock_mhz(), "rows": rows}
    with open(args.json, "w") as out:
        json.dump(result, out, indent=1)


if __name__ == "__main__":
    main()
