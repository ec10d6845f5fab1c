"""mlaprefill on a GPU against FlashAttention-3 (varlen, fa3_fwd wheel), cuDNN (PyTorch SDPA) and the layer as serving
engines run it: same tensors, one process, random order, L2 flushed before each call, CUDA events, medians.

Every contender is first checked against fp64 on sampled rows. FLOP: visible pairs (and expanded rows of a layer) only.
The card's own GEMM rate (cuBLAS 8192^3, bf16) is measured among the contenders of each shape.

usage: gpu.py --library libmlaprefill_c.so --commit ID [--heads 128,16] [--only attention|attention_wide|attention_few|layer] [--json FILE]
"""
import argparse
import statistics

import capi
import gpu_measure
import gpu_timing
import torch
from gpu_attention import FEW_HEADS, FEW_SHAPES, NARROW, WIDE, WIDE_SHAPES, Attention
from gpu_attention import SHAPES as ATTENTION_SHAPES
from gpu_fa3 import FlashAttention3
from gpu_layer import SHAPES as LAYER_SHAPES
from gpu_layer import Layer

ERROR_LIMIT = 1e-2


def attention_contenders(subject, backend, fa3_splits=(1,)):
    """{name: call}; call.out is what it computes. FlashAttention-3 chooses a number of splits itself where it is 0."""
    found = {"mlaprefill": subject.ours(backend)}
    for splits in fa3_splits:
        flash = FlashAttention3(subject.requests, subject.causal, subject.dims.scale, splits)
        for name, v in (("FA3, V strided", subject.v), ("FA3, V contiguous", subject.v_contiguous)):
            found[name + (", own splits" if splits == 0 else "")] = gpu_timing.Captured(
                lambda flash=flash, v=v: flash(subject.q, subject.k, v)[0])
    return found | subject.cudnn()


def geometric_mean(results, contender):
    ratios = [one["contenders"][contender]["times_slower_than_ours"] for one in results
              if contender in one["contenders"]]
    return statistics.geometric_mean(ratios) if ratios else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libmlaprefill_c.so with the sm90 backend")
    parser.add_argument("--only", choices=("attention", "attention_wide", "attention_few", "layer"))
    gpu_measure.add_arguments(parser)
    options = parser.parse_args()

    torch.manual_seed(0)
    backend = capi.Backend(capi.Library(options.library), name="sm90")
    timer = gpu_timing.Timer(options.rounds)
    gemm = gpu_timing.card_gemm()
    report = gpu_measure.report_of("mlaprefill.gpu_peers/1", options, timer)
    report.update(backend=backend.description(), attention=[], attention_wide=[], attention_few=[],
                  layer=[])

    def measure(subject, contenders):
        return gpu_measure.measure(subject, contenders, timer, gemm, "times_slower_than_ours", ERROR_LIMIT)

    for heads in options.heads:
        for kind, dims, shapes in (("attention", NARROW, ATTENTION_SHAPES), ("attention_wide", WIDE, WIDE_SHAPES)):
            for name in gpu_measure.selected(shapes, options.shapes) if options.only in (None, kind) else ():
                subject = Attention(name, heads, dims)
                rows = measure(subject, attention_contenders(subject, backend))
                report[kind].append({"shape": name, "heads": heads, "contenders": rows})
        for name in gpu_measure.selected(LAYER_SHAPES, options.shapes) if options.only in (None, "layer") else ():
            subject = Layer(name, heads)
            contenders, way = subject.contenders(backend, timer)
            rows = measure(subject, contenders)
            report["layer"].append({"shape": name, "heads": heads, "concatenation": way, "contenders": rows})
    for heads in FEW_HEADS if options.only in (None, "attention_few") else ():
        for name in gpu_measure.selected(FEW_SHAPES, options.shapes):
            subject = Attention(name, heads)
            rows = measure(subject, attention_contenders(subject, backend, fa3_splits=(1, 0)))
            report["attention_few"].append({"shape": name, "heads": heads, "contenders": rows})
    report["geometric_means"] = {
        name: geometric_mean(report["attention"] + report["layer"], name)
        for name in ("FA3, V strided", "FA3, V contiguous", "cuDNN", "engine sequence")}
    print("times slower than ours, geometric means:", report["geometric_means"])
    gpu_measure.save(report, options)


if __name__ == "__main__":
    main()
