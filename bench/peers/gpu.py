"""mlaprefill on a GPU against FlashAttention-3 (varlen, fa3_fwd wheel), cuDNN (PyTorch SDPA) and the layer as serving
engines run it: same tensors, one process, random order, L2 flushed before each call, CUDA events, medians.

Every contender is first checked against fp64 on sampled rows. FLOP: visible pairs (and expanded rows of a layer) only.
The card's own GEMM rate (cuBLAS 8192^3, bf16) is measured among the contenders of each shape.

usage: gpu.py --library libmlaprefill_c.so --commit ID [--heads 128,16] [--only attention|layer] [--json FILE]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import capi
import gpu_timing
import torch
from gpu_attention import SHAPES as ATTENTION_SHAPES
from gpu_attention import Attention
from gpu_layer import SHAPES as LAYER_SHAPES
from gpu_layer import Layer

ERROR_LIMIT = 1e-2
GEMM = "cuBLAS 8192^3"


def measure(subject, contenders, timer, gemm):
    calls, rows = {}, {}
    for name, call in contenders.items():
        call()
        error = subject.error(call.out)
        if not error < ERROR_LIMIT:
            sys.exit(f"{subject.name} {name}: relative error must be < {ERROR_LIMIT}, got {error}")
        calls[name], rows[name] = call, {"relative_error": error, "flop": subject.flop}
    call, flop = gemm
    calls[GEMM], rows[GEMM] = call, {"flop": flop}
    for name, times in timer.compare(calls).items():
        rows[name].update(times, tflops=rows[name]["flop"] / times["ms"] / 1e9)
    ours = rows["mlaprefill"]["ms_by_round"]
    for name in contenders:
        rows[name]["times_slower_than_ours"] = statistics.median(
            theirs / mine for theirs, mine in zip(rows[name]["ms_by_round"], ours))
    return rows


def show(kind, subject, rows):
    cells = " | ".join(f"{name} {row['ms']:.4f} ms {row['tflops']:.0f} TF/s" +
                       (f" {row['times_slower_than_ours']:.3f}x" if "times_slower_than_ours" in row else "")
                       for name, row in rows.items())
    print(f"{kind} {subject.name}, {subject.heads} heads | {cells}", flush=True)


def geometric_mean(results, contender):
    ratios = [one["contenders"][contender]["times_slower_than_ours"] for one in results
              if contender in one["contenders"]]
    return statistics.geometric_mean(ratios) if ratios else None


def nvidia_smi(*fields):
    text = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"],
                          capture_output=True, text=True).stdout
    return dict(zip(fields, text.strip().split(", ")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libmlaprefill_c.so with the sm90 backend")
    parser.add_argument("--commit", required=True, help="what the library was built from")
    parser.add_argument("--heads", default="128,16", help="comma separated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("attention", "layer"))
    parser.add_argument("--shapes", default="", help="part of a shape's name")
    parser.add_argument("--json", help="result file")
    options = parser.parse_args()

    torch.manual_seed(0)
    backend = capi.Backend(capi.Library(options.library), name="sm90")
    timer = gpu_timing.Timer(options.rounds)
    gemm = gpu_timing.card_gemm()
    report = {"schema": "mlaprefill.gpu_peers/1", "command": " ".join(sys.argv), "commit": options.commit,
              "backend": backend.description(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
              **nvidia_smi("name", "driver_version", "power.limit"), "rounds": options.rounds, "flushed_l2": True,
              "attention": [], "layer": []}
    for heads in map(int, options.heads.split(",")):
        for name in ATTENTION_SHAPES if options.only != "layer" else ():
            if options.shapes not in name:
                continue
            subject = Attention(name, heads)
            rows = measure(subject, subject.contenders(backend), timer, gemm)
            show("attention", subject, rows)
            report["attention"].append({"shape": name, "heads": heads, "contenders": rows})
        for name in LAYER_SHAPES if options.only != "attention" else ():
            if options.shapes not in name:
                continue
            subject = Layer(name, heads)
            contenders, way = subject.contenders(backend, timer)
            rows = measure(subject, contenders, timer, gemm)
            show("layer", subject, rows)
            report["layer"].append({"shape": name, "heads": heads, "concatenation": way, "contenders": rows})
    report["geometric_means"] = {
        name: geometric_mean(report["attention"] + report["layer"], name)
        for name in ("FA3, V strided", "FA3, V contiguous", "cuDNN", "engine sequence")}
    print("times slower than ours, geometric means:", report["geometric_means"])
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
