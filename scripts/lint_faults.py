#!/usr/bin/env python3
"""Checks that every test, script and case named in docs/faults.md exists."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEST = re.compile(r"\bTEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\s*\)")


def main():
    sources = [path.read_text() for path in sorted((ROOT / "tests").rglob("*_test.cc"))]
    known = {f"{suite}.{name}" for text in sources for suite, name in TEST.findall(text)}
    failures = 0
    document = (ROOT / "docs/faults.md").read_text()
    for name in re.findall(r"`(\w+\.\w+)`", document):
        if name.endswith(".py"):
            continue
        if name not in known:
            print(f"docs/faults.md: no test {name}")
            failures += 1
    for script in re.findall(r"\b(scripts/\w+(?:\.py)?|\.ci/run)", document):
        if not (ROOT / script).is_file():
            print(f"docs/faults.md: no file {script}")
            failures += 1
    for row in document.splitlines():
        if row.startswith("| ") and row.count("|") == 5 and not row.split("|")[4].strip():
            print(f"docs/faults.md: neither test nor reason: {row}")
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
