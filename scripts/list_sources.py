#!/usr/bin/env python3
"""list_sources.py COMPILE_COMMANDS FOLDER...: the C++ sources under the folders, one a line."""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main(database, folders):
    names = set()
    for entry in json.loads(pathlib.Path(database).read_text()):
        path = pathlib.Path(entry["file"]).resolve()
        if path.suffix == ".cc" and path.is_relative_to(ROOT):
            name = path.relative_to(ROOT)
            if name.parts[0] in folders:
                names.add(name.as_posix())
    print("\n".join(sorted(names)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
