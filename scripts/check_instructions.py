#!/usr/bin/env python3
"""Counts the instructions of small fixed cases under callgrind and compares them with a committed baseline.

The count does not depend on how busy the machine is. Usage:
  scripts/check_instructions.py BUILD_DIR            compare, exit 1 beyond the margin
  scripts/check_instructions.py BUILD_DIR --update   write the baseline
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASELINE = ROOT / "bench" / "baselines" / "instructions.json"
CASES = [("causal-512", "avx2"), ("layer-8x4", "avx2")]
MARGIN = 0.05


def count(binary, shape, isa):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "callgrind.out"
        subprocess.run(
            ["valgrind", "--tool=callgrind", "--collect-atstart=no", "--toggle-collect=measured_call",
             f"--callgrind-out-file={out}", str(binary), shape, isa],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        totals = re.search(r"^(?:totals|summary): (\d+)", out.read_text(), re.M)
        return int(totals.group(1))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if shutil.which("valgrind") is None:
        print("valgrind is not installed")
        sys.exit(77)
    binary = pathlib.Path(sys.argv[1]) / "bench" / "instructions"
    counts = {f"{shape} {isa}": count(binary, shape, isa) for shape, isa in CASES}
    if "--update" in sys.argv[2:]:
        BASELINE.write_text(json.dumps(counts, indent=2) + "\n")
        print(f"wrote {BASELINE.relative_to(ROOT)}")
        return
    baseline = json.loads(BASELINE.read_text())
    failed = False
    for name, now in counts.items():
        ratio = now / baseline[name]
        verdict = "ok" if ratio <= 1 + MARGIN else "REGRESSION"
        failed |= verdict != "ok"
        print(f"instructions {name}: {now:,} against {baseline[name]:,} ({ratio - 1:+.2%}) {verdict}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
