"""What the GPU comparisons share: options, checks, the card's GEMM among the contenders, and the report."""
import json
import pathlib
import statistics
import subprocess
import sys

import torch

GEMM = "cuBLAS 8192^3"


def add_arguments(parser):
    parser.add_argument("--commit", required=True, help="what the library was built from")
    parser.add_argument("--heads", type=lambda text: [int(heads) for heads in text.split(",")], default=[128, 16],
                        help="comma separated, 128,16 unless given")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shapes", default="", help="parts of shapes' names, comma separated")
    parser.add_argument("--json", help="result file")


def selected(shapes, parts):
    return [name for name in shapes if any(part in name for part in parts.split(","))]


def nvidia_smi(*fields):
    text = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(fields), "--format=csv,noheader"],
                          capture_output=True, text=True).stdout
    return dict(zip(fields, text.splitlines()[0].split(", ")))


def report_of(schema, options, timer):
    return {"schema": schema, "command": " ".join(sys.argv), "commit": options.commit, "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(), **nvidia_smi("name", "driver_version", "power.limit"),
            "rounds": timer.rounds, "flushed_l2": timer.flushes}


def measure(subject, contenders, timer, gemm, ratio, error_limit):
    """Checks and times {name: call}, call.out being what it computes, and the card's GEMM. {name: results}, those of
    a contender with `ratio`: how many times as long as the first one it took, round by round."""
    calls, rows = {}, {}
    for name, call in contenders.items():
        call()
        error = subject.error(call.out)
        if error > error_limit:
            sys.exit(f"{subject.name} {name}: relative error must be at most {error_limit}, got {error}")
        calls[name], rows[name] = call, {"relative_error": error, "flop": subject.flop}
    call, flop = gemm
    calls[GEMM], rows[GEMM] = call, {"flop": flop}
    for name, times in timer.compare(calls).items():
        rows[name].update(times, tflops=rows[name]["flop"] / times["ms"] / 1e9)
    first = rows[next(iter(contenders))]["ms_by_round"]
    for name in contenders:
        rows[name][ratio] = statistics.median(ms / base for ms, base in zip(rows[name]["ms_by_round"], first))
    cells = " | ".join(f"{name} {row['ms']:.4f} ms {row['tflops']:.0f} TF/s" +
                       (f" {row[ratio]:.3f}x error {row['relative_error']:.1e}" if ratio in row else "")
                       for name, row in rows.items())
    print(f"{subject.name}, {subject.heads} heads | {cells}", flush=True)
    return rows


def save(report, options):
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
