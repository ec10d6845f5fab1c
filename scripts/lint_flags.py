#!/usr/bin/env python3
"""Checks a compile database: the build host's instruction set must not leak into the binary.

Only a translation unit whose file name says its instruction set may be compiled with -mavx*, -mamx*, -mfma or
-march=, so that everything else starts on any x86-64 machine.
"""

import json
import pathlib
import re
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ISA_FLAG = re.compile(r"^-m(avx|amx|fma|f16c|bmi|sse[34]|ssse3|arch=|tune=native|cpu=)")
KERNEL = re.compile(r"^src/(backend/cpu|bench)/.*(avx2|avx512|amx)[^/]*\.cc$")


def main(database):
    failures = 0
    for entry in json.loads(pathlib.Path(database).read_text()):
        path = pathlib.Path(entry["file"]).resolve()
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
        flags = [f for f in shlex.split(entry["command"]) if ISA_FLAG.match(f)]
        if any(f.endswith("=native") for f in flags) or (flags and not KERNEL.match(name)):
            print(f"{name}: compiled with {' '.join(flags)}")
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
