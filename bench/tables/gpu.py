"""The tables that come from bench/results/gpu."""
import json
import pathlib
import statistics

from markdown import table

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results" / "gpu"
OURS, GEMM, ENGINES, CUDNN = "mlaprefill", "cuBLAS 8192^3", "engine sequence", "cuDNN"
FLASH = ("FA3, V strided", "FA3, V contiguous")
OWN_SPLITS = tuple(f"{name}, own splits" for name in FLASH)
HEADS = (128, 16)
FEW_HEADS = (16, 8)
CLOSE = 1.05


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def by_shape(results, heads=HEADS):
    """(shape, [contenders for each of the numbers of heads]) of every shape."""
    found = {(one["shape"], one["heads"]): one["contenders"] for one in results}
    return [(shape, [found[shape, n] for n in heads]) for shape in dict.fromkeys(one["shape"] for one in results)]


def slower(contenders, *names):
    """How many times as long as ours the fastest of the named contenders took."""
    return min(contenders[name]["times_slower_than_ours"] for name in names)


def ratios(results, *names, heads=HEADS):
    return [slower(one["contenders"], *names) for one in results
            if one["heads"] in heads and names[0] in one["contenders"]]


def mean(values):
    return f"{statistics.geometric_mean(values):.2f}"


def provenance(report, results):
    rates = [one["contenders"][GEMM]["tflops"] for one in results]
    error = max(row.get("relative_error", 0) for one in results for row in one["contenders"].values())
    return (f"{report['name']}, driver {report['driver_version']}, {report['power.limit']} cap, commit "
            f"{report['commit']}, medians of {report['rounds']} rounds. Largest error of a checked row: {error:.2%}.\n"
            f"The card's GEMM ran at {min(rates):.0f} to {max(rates):.0f} TFLOP/s between them.\n")


def attention(kind):
    report = load(f"peers_{kind}")
    results = report[kind]
    rows = []
    for shape, both in by_shape(results):
        row = [shape]
        for contenders in both:
            ours = contenders[OURS]["tflops"]
            row += [f"{ours:.0f}", f"{ours / contenders[GEMM]['tflops']:.2f}", f"{slower(contenders, FLASH[0]):.2f}",
                    f"{slower(contenders, CUDNN):.2f}" if CUDNN in contenders else ""]
        rows.append(row)
    columns = ("of cuBLAS", "FA3", "cuDNN")
    close = [f"{one['shape']} with {one['heads']} heads ({slower(one['contenders'], *FLASH):.2f})" for one in results
             if slower(one["contenders"], *FLASH) < CLOSE]
    means = (f"Geometric means: FA3 {mean(ratios(results, FLASH[0]))} (with a contiguous V "
             f"{mean(ratios(results, FLASH[1]))}), cuDNN {mean(ratios(results, CUDNN))}. Less than {CLOSE - 1:.0%} ahead "
             f"of the faster FA3 variant: {'; '.join(close) or 'nowhere'}.\n")
    header = ["attention", *(cell for heads in HEADS for cell in (f"ours, {heads} heads", *columns))]
    return "\n".join([provenance(report, results), table(header, rows), means])


def attention_few():
    report = load("peers_attention_few")
    results = report["attention_few"]
    rows = []
    for shape, both in by_shape(results, FEW_HEADS):
        row = [shape]
        for contenders in both:
            row += [f"{contenders[OURS]['ms'] * 1e3:.0f} us", f"{contenders[OURS]['tflops']:.0f}",
                    f"{slower(contenders, *FLASH):.2f}", f"{slower(contenders, *OWN_SPLITS):.2f}"]
        rows.append(row)
    means = (f"Geometric means: FA3 {mean(ratios(results, *FLASH, heads=FEW_HEADS))}, with its own number of splits "
             f"{mean(ratios(results, *OWN_SPLITS, heads=FEW_HEADS))}.\n")
    columns = ("TFLOP/s", "FA3", "FA3, own splits")
    header = ["new tokens of keys", *(cell for heads in FEW_HEADS for cell in (f"ours, {heads} heads", *columns))]
    return "\n".join([provenance(report, results), table(header, rows), means])


def layer():
    report = load("peers_layer")
    results = report["layer"]
    rows = []
    for shape, both in by_shape(results):
        row = [shape]
        for contenders in both:
            row += [f"{contenders[OURS]['ms']:.3f} ms", f"{contenders[ENGINES]['ms']:.3f} ms",
                    f"{slower(contenders, ENGINES):.2f}"]
        rows.append(row)
    by_heads = ", ".join(f"{heads} heads {mean(ratios(results, ENGINES, heads=(heads,)))}" for heads in HEADS)
    all_ratios = ratios(results, ENGINES)
    means = f"Geometric mean {mean(all_ratios)} ({by_heads}), the least {min(all_ratios):.2f}.\n"
    header = ["layer: new / context", *(cell for heads in HEADS for cell in (f"ours, {heads} heads", "engines", "ratio"))]
    return "\n".join([provenance(report, results), table(header, rows), means])


def host_times():
    machines = [load(name)["results"] for name in ("host_time_first_machine", "host_time")]
    rows = []
    for name, key, wanted in (("attention call", "attention_call_us", 6),
                              ("whole layer, enqueued directly", "layer_us", 20),
                              ("layer under graph replay", "graph_layer_us", 3)):
        times = [[result[key] for result in results] for results in machines]
        rows.append([name, *(f"{min(t):.1f} to {max(t):.1f}" for t in times), str(wanted)])
    return table(["", "first machine", "second machine", "wanted"], rows)


def compared(values, contender):
    return (f"{mean(values)} times as fast as {contender} ({len(values)} cases, {min(values):.2f} to "
            f"{max(values):.2f})")


def summary():
    """The README's sentence."""
    few = load("peers_attention_few")["attention_few"]
    return ("On one H200, bf16, dims (192, 128), in geometric means: attention is\n"
            f"{compared(ratios(load('peers_attention')['attention'], *FLASH), 'FlashAttention-3')}, the whole layer\n"
            f"{compared(ratios(load('peers_layer')['layer'], ENGINES), 'the sequence serving engines run with it')}.\n"
            "In batches too small or too uneven to fill the device, keys are divided between processors: "
            "attention is then\n"
            f"{compared(ratios(few, *OWN_SPLITS, heads=FEW_HEADS), 'FlashAttention-3 with `num_splits=0`')}, "
            f"{mean(ratios(few, *FLASH, heads=FEW_HEADS))} times\nas it is by default.\n")


def parts():
    """Mark to text."""
    return {"gpu-tables: attention": attention("attention"),
            "gpu-tables: attention, wide heads": attention("attention_wide"),
            "gpu-tables: attention, few items": attention_few(),
            "gpu-tables: layer": layer(),
            "gpu-tables: host times": host_times(),
            "gpu-tables: summary": summary()}
