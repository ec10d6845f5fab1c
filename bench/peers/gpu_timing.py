"""Timing on one GPU: contenders interleaved in random order, CUDA events, medians."""
import math
import random
import statistics

import torch

FLUSH_BYTES = 256 << 20
BLOCK_MS = 10  # of calls that are measured together
MAX_CALLS = 20


class Timer:
    """What ran before decides the card's clock, so each measurement is a block: a contender's own calls warm the
    card up, for `warm_ms` or by as many calls as are timed, then its next calls are timed one by one."""

    def __init__(self, rounds, flushes=True, warm_ms=None):
        self.rounds, self.flushes, self._warm_ms = rounds, flushes, warm_ms
        self._flushed = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def _prepare(self):
        if self.flushes:
            self._flushed.zero_()

    def block(self, call, count, warm_up=None):
        """Milliseconds of `count` calls, after as many or `warm_up` others, and the SM clock in MHz while they ran."""
        for _ in range(count if warm_up is None else warm_up):
            self._prepare()
            call()
        events = []
        for _ in range(count):
            self._prepare()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        clock = torch.cuda.clock_rate()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events], clock

    def compare(self, contenders):
        """{name: call} to {name: {"ms", "ms_by_round", "calls_by_round", "sm_clock_mhz"}}."""
        counts, warm_ups = {}, {}
        for name, call in contenders.items():
            once = statistics.median(self.block(call, 2)[0])
            counts[name] = max(1, min(MAX_CALLS, int(BLOCK_MS / once)))
            warm_ups[name] = None if self._warm_ms is None else math.ceil(self._warm_ms / once)
        times = {name: [] for name in contenders}
        clocks = {name: [] for name in contenders}
        for _ in range(self.rounds):
            for name in random.sample(list(contenders), len(contenders)):
                measured, clock = self.block(contenders[name], counts[name], warm_ups[name])
                times[name].append(statistics.median(measured))
                clocks[name].append(clock)
        return {name: {"ms": statistics.median(times[name]), "ms_by_round": times[name],
                       "calls_by_round": counts[name], "sm_clock_mhz": statistics.median(clocks[name])}
                for name in contenders}


class Captured:
    """A call as a CUDA graph: host time and the launch gaps of its steps vanish. `out` is what the call returned."""

    def __init__(self, call):
        self._call = call  # keeps alive the tensors that the graph reads
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=side):
            self.out = call()

    def __call__(self):
        self._graph.replay()


def stream():
    return torch.cuda.current_stream().cuda_stream


def card_gemm():
    """The card's own rate: cuBLAS 8192^3 in bf16. (call, FLOP)"""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out), 2 * 8192.0 ** 3
