"""The tables that come from bench/results/cpu."""
import json
import pathlib

from markdown import table

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results" / "cpu"

NAMES = {
    "causal-2048": "attention, causal 2048", "full-512x4096": "attention, full 512 x 4096",
    "full-2048x8192": "attention, full 2048 x 8192", "causal-512": "attention, causal 512",
    "lognormal-4096": "attention, 13 prompts of 69 to 897 tokens", "lognormal-as-one": "the same pairs in one prompt",
    "layer-512-4096": "whole layer, 512 new + 4096 context", "layer-2048": "whole layer, 2048 new",
    "layer-lognormal": "whole layer, the 13 prompts", "layer-as-one": "the same FLOP in one prompt",
    "layer-1-4607": "up-projection of 4,608 rows", "layer-400-512": "whole layer, 400 new + 512 context"}


def load(name):
    report = json.loads((RESULTS / f"{name}.json").read_text())
    return report, {result["shape"]: result for result in report["results"]}


def main_table():
    runs = [[load(f"bf16_{threads}t_run{run}")[1] for run in (1, 2)] for threads in (1, 2)]
    scaling = load("scaling_2_cores")[1]
    rows = []
    for shape, name in NAMES.items():
        cells = [" / ".join(f"{run[shape]['timing']['gflops']:.0f}" for run in pair) for pair in runs]
        ratio = scaling[shape]["ratio"]
        rows.append([name, *cells, f"{ratio['median']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"])
    cells = [" / ".join(f"{run['layer-8x4']['timing']['median_seconds'] * 1e6:.0f}" for run in pair) + " us"
             for pair in runs]
    rows.append(["layer call, 8 requests of 4 tokens", *cells, f"{scaling['layer-8x4']['ratio']['median']:.2f}"])
    return table(["bf16, 16 heads, AMX tiles", "1 thread", "2 threads", "2 threads against 1, paired"], rows)


def levels_table():
    rows = []
    for name, file in (("float32 inputs on AVX-512", "f32_1t"),
                       ("bf16 inputs on AVX-512 (float32 tiles)", "bf16_1t_avx512"),
                       ("bf16 inputs on AVX512_BF16", "bf16_1t_avx512_bf16"),
                       ("bf16 inputs on AVX2 (float32 tiles)", "bf16_1t_avx2")):
        results = load(file)[1]
        cells = [f"{results[s]['timing']['gflops']:.0f} ({results[s]['share_of_peak']:.0%})"
                 for s in ("causal-2048", "full-512x4096", "layer-1-4607")]
        ragged = results["lognormal-4096"]["timing"]["gflops"] / results["lognormal-as-one"]["timing"]["gflops"]
        rows.append([name, *cells, f"{ragged:.0%}"])
    return table(["other tiles, 1 thread (share of that instruction's peak)", "causal 2048", "full 512 x 4096",
                  "up-projection", "ragged against one prompt"], rows)


def ragged_table():
    rows = []
    for name, ragged, single in (("attention", "lognormal-4096", "lognormal-as-one"),
                                 ("whole layer", "layer-lognormal", "layer-as-one")):
        cells = []
        for threads in (1, 2):
            shares = []
            for run in (1, 2):
                results = load(f"bf16_{threads}t_run{run}")[1]
                shares.append(results[ragged]["timing"]["gflops"] / results[single]["timing"]["gflops"])
            cells.append(" / ".join(f"{share:.0%}" for share in shares))
        rows.append([name, *cells])
    return table(["rate of 13 prompts against one of the same work, AMX", "1 thread", "2 threads"], rows)


def scaling_table():
    report = json.loads((RESULTS / "scaling_16_cores.json").read_text())
    runs = [{r["shape"]: r["ratio"]["median"] for r in run["results"]} for run in report["runs"]]
    threads = [str(run["subject"]["threads"]) for run in report["runs"]]
    rows = [[shape, *(f"{run[shape]:.1f}" for run in runs)] for shape in runs[0]]
    peaks = [f"{amx_peak(run) / int(t):,.0f}" for run, t in zip(report["runs"], threads)]
    rows.append(["tile peak, GFLOP/s a thread", *peaks])
    return table(["times as fast as 1 thread", *(f"{t} threads" for t in threads)], rows)


def peers_table():
    contenders = [("causal-2048", "torch SDPA, V padded", "SDPA with V padded, causal 2048"),
                  ("full-512x4096", "torch SDPA, V padded", "SDPA with V padded, full 512 x 4096"),
                  ("causal-2048", "torch dense fp32 with LSE", "dense float32 with LSE, causal 2048"),
                  ("full-512x4096", "torch dense fp32 with LSE", "dense float32 with LSE, full 512 x 4096"),
                  ("layer-512-4096", "torch layer, LSE and merge", "whole layer with LSE and merge, 512 + 4096"),
                  ("layer-512-4096", "torch layer, one SDPA call", "whole layer in one SDPA call, 512 + 4096"),
                  ("up-projection-4608", "torch F.linear", "`F.linear` against our up-projection")]
    report = json.loads((RESULTS / "pytorch.json").read_text())
    slower = {(r["shape"], r["contender"], r["dtype"], r["threads"]): r["times_slower_than_ours"]
              for r in report["results"]}
    rows = []
    for shape, contender, name in contenders:
        cells = [" / ".join(f"{slower[shape, contender, dtype, threads]:.2f}" for threads in (1, 2))
                 for dtype in ("bfloat16", "float32")]
        rows.append([name, *cells])
    return table(["times slower than ours, 1 / 2 threads", "bf16", "float32"], rows)


def amx_peak(report):
    return next(peak["gflops"] for peak in report["peaks"] if peak["isa"] == "amx_bf16")


def provenance():
    reports = [load(f"bf16_1t_run{run}")[0] for run in (1, 2)]
    first, second = (f"{amx_peak(report):,.0f}" for report in reports)
    return (f"Commit {reports[0]['commit']}; the AMX peak of one thread was {first} and {second} GFLOP/s in the two\n"
            "runs; each cell gives run 1 / run 2.\n")


def parts():
    """Mark to text."""
    figures = "\n".join([provenance(), main_table(), ragged_table(), levels_table()])
    return {"cpu-tables: figures": figures, "cpu-tables: peers": peers_table(), "cpu-tables: scaling": scaling_table()}
