"""Builds of the Hopper attention kernel against each other, cuDNN and the card's GEMM, without plan or layer.

Every library is one build of bench/sm90/attention_capi.cc (target attention_bench), its schedule uploaded beforehand.
Shapes, checks and timing are those of gpu.py, but L2 stays warm and ratios are to the first library. An error is
recorded, not refused: a probe may be wrong on purpose.

usage: attention_bench.py --commit ID [--json FILE] NAME=LIBRARY.so [NAME=LIBRARY.so ...]
"""
import argparse
import ctypes as c
import math
import pathlib

import gpu_measure
import gpu_timing
from gpu_attention import FEW_SHAPES, SCALE, SHAPES, Attention, outputs_for


class Launch:
    """A call of one build on a subject's tensors."""

    def __init__(self, library, subject):
        self._library, self._subject = library, subject
        self.out, self._lse = outputs_for(subject.q)
        spans = subject.spans()
        pointers = [c.c_void_p(t.data_ptr()) for t in (subject.q, subject.kv, subject.rope)]
        library.attention_bench_create.restype = c.c_void_p
        self._runner = c.c_void_p(library.attention_bench_create(
            c.c_int64(subject.heads), c.c_int64(len(subject.q)), c.c_int64(len(subject.kv)), *pointers,
            c.c_int64(subject.rope.stride(0)), c.c_void_p(self.out.data_ptr()), c.c_void_p(self._lse.data_ptr()),
            c.c_double(SCALE), spans, c.c_int64(len(spans))))
        if not self._runner:
            raise RuntimeError("attention_bench_create failed, see stderr")

    def __del__(self):
        self._library.attention_bench_destroy(self._runner)

    def __call__(self):
        error = self._library.attention_bench_launch(self._runner, c.c_void_p(gpu_timing.stream()))
        if error:
            raise RuntimeError(f"attention_bench_launch: CUDA error {error}")
        return self.out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    gpu_measure.add_arguments(parser)
    parser.add_argument("--warm-ms", type=int, default=50, help="of the same contender, before each measurement")
    parser.add_argument("--cold", action="store_true", help="flush L2 before each call")
    parser.add_argument("--no-cudnn", action="store_true")
    parser.add_argument("libraries", nargs="+", metavar="NAME=LIBRARY.so")
    options = parser.parse_args()

    libraries = {name: c.CDLL(str(pathlib.Path(path).resolve()))
                 for name, path in (item.split("=") for item in options.libraries)}
    timer = gpu_timing.Timer(options.rounds, options.cold, options.warm_ms)
    gemm = gpu_timing.card_gemm()
    report = gpu_measure.report_of("mlaprefill.gpu_attention_bench/2", options, timer)
    report["attention"] = []
    for heads in options.heads:
        for name in gpu_measure.selected(SHAPES | FEW_SHAPES, options.shapes):
            subject = Attention(name, heads)
            contenders = {build: gpu_timing.Captured(Launch(library, subject)) for build, library in libraries.items()}
            if not options.no_cudnn:
                contenders.update(subject.cudnn())
            rows = gpu_measure.measure(subject, contenders, timer, gemm, "times_slower_than_first", math.inf)
            report["attention"].append({"shape": name, "heads": heads, "contenders": rows})
    gpu_measure.save(report, options)


if __name__ == "__main__":
    main()
