#!/usr/bin/env python3
"""Writes what README.md and docs/performance.md quote from bench/results, between `<!-- NAME -->` and `<!-- end -->`.

usage: bench/tables/write.py [--check]    --check writes nothing and fails when a file is out of step"""
import pathlib
import re
import sys

import cpu
import gpu

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "performance.md"]
PART = re.compile(r"(<!-- ([cg]pu-tables: .*?) -->\n).*?(<!-- end -->)", re.S)


def main():
    parts = cpu.parts() | gpu.parts()
    texts = {document: document.read_text() for document in DOCUMENTS}
    marks = sorted(match[2] for text in texts.values() for match in PART.finditer(text))
    if marks != sorted(parts):
        sys.exit(f"marks: must be {sorted(parts)}, got {marks}")
    for document, text in texts.items():
        written = PART.sub(lambda match: f"{match[1]}\n{parts[match[2]]}\n{match[3]}", text)
        if sys.argv[1:] != ["--check"]:
            document.write_text(written)
        elif written != text:
            sys.exit(f"{document.relative_to(ROOT)}: must agree with bench/results, run bench/tables/write.py")


if __name__ == "__main__":
    main()
