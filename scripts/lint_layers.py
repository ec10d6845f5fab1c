#!/usr/bin/env python3
"""Checks that arrows between layers only point outwards (docs/architecture.md) and where CUDA headers appear."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLIC = "include/mlaprefill"

# Layer -> the layers whose internal headers it may include, besides its own.
LAYERS = {
    "src/core": [],
    "src/plan": ["src/core"],
    "src/backend": ["src/core"],  # registry and argument checks
    "src/backend/*": ["src/core", "src/backend"],  # each backend: neither another one nor the planner
    "src/layer": ["src/core", "src/backend"],
    "src/verify": ["src/core", "src/backend"],  # oracle and comparison
    "src/c_api": ["src/core"],
    "src/io": ["src/core"],
    "src/replay": ["src/core", "src/io", "src/verify"],
    "src/bench": ["src/core", "src/io", "src/verify"],
    "tools/cli": ["src/core", "src/io", "src/verify", "src/replay", "src/bench"],
}

# What the planner and the backend that uploads plans agree on.
SHARED = {"src/plan/metadata_size.h": "src/backend/sm90", "src/plan/kv_splits.h": "src/backend/sm90"}

# Layer -> the public headers it may not include, because they belong to a layer further out.
HIDDEN_PUBLIC = {
    "src/core": ["plan.h", "backend.h", "layer.h", "mlaprefill.h", "c_api.h"],
    "src/plan": ["backend.h", "layer.h", "mlaprefill.h", "c_api.h"],
    "src/backend": ["layer.h", "mlaprefill.h", "c_api.h"],
    "src/backend/*": ["layer.h", "mlaprefill.h", "c_api.h"],
    "src/layer": ["mlaprefill.h", "c_api.h"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
CUDA_FOLDERS = ("src/backend/sm90/", "tests/gpu/", "tests/sm90/", "bench/sm90/")
CUDA_HEADER = re.compile(r"^(cuda|cublas|cudnn|nccl|nvrtc|nvtx3?|nvToolsExt|cooperative_groups|cute|cutlass|cub|thrust)")


def layer_of(path):
    """The key of LAYERS that owns a file, or None (tests, benchmarks)."""
    folder = path.parent.as_posix()
    if re.match(r"src/backend/[^/]+", folder):
        return "src/backend/*"
    for layer in LAYERS:
        if folder == layer or folder.startswith(layer + "/"):
            return layer
    return None


def folder_of(path, layer):
    """The folder a layer's key stands for, for this file."""
    return "/".join(path.parts[:3]) if layer == "src/backend/*" else layer


def resolve(includer, text):
    """The repository file that a quoted include names, or None."""
    for base in (includer.parent, pathlib.Path("src"), pathlib.Path("include"), pathlib.Path("tests"), pathlib.Path(".")):
        candidate = base / text
        if (ROOT / candidate).is_file():
            return pathlib.Path((ROOT / candidate).resolve().relative_to(ROOT))
    return None


def check_include(path, quoted, text):
    """The complaint about one include, or None."""
    if CUDA_HEADER.match(text) and not path.as_posix().startswith(CUDA_FOLDERS):
        return "CUDA headers appear only under backend/sm90, its tests and its benchmarks"
    if path.as_posix().startswith(PUBLIC):
        if quoted and not text.startswith("mlaprefill/"):
            return "public headers include only the standard library and mlaprefill/"
        if not quoted and ("/" in text or (text.endswith(".h") and text not in ("stdint.h", "stddef.h"))):
            return "public headers include only the standard library and mlaprefill/"
        return None
    layer = layer_of(path)
    if layer is None:
        return None
    target = resolve(path, text)
    if target is None:
        return "no such file in the repository" if quoted else None
    if target.as_posix().startswith(PUBLIC):
        return f"{layer} may not know {text}" if target.name in HIDDEN_PUBLIC.get(layer, []) else None
    own = folder_of(path, layer)
    target_layer = layer_of(target)
    if target_layer is not None and folder_of(target, target_layer) == own:
        return None
    if target_layer in LAYERS[layer] or SHARED.get(target.as_posix()) == own:
        return None
    return f"{layer} may include {', '.join(LAYERS[layer]) or 'no other layer'} and itself"


def main():
    listed = subprocess.run(["git", "ls-files", "include", "src", "tools", "tests", "bench"], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.split()
    failures = 0
    for name in listed:
        path = pathlib.Path(name)
        if path.suffix not in (".h", ".cc", ".c", ".cu", ".cuh") or not (ROOT / path).is_file():
            continue
        if path.suffix in (".cu", ".cuh") and not name.startswith(CUDA_FOLDERS):
            print(f"{name}: CUDA sources appear only under backend/sm90, its tests and its benchmarks")
            failures += 1
        if path.parts[0] == "src" and layer_of(path) is None:
            print(f"{name}: no layer of scripts/lint_layers.py owns this folder")
            failures += 1
        for match in INCLUDE.finditer((ROOT / path).read_text()):
            complaint = check_include(path, match[1] == '"', match[2])
            if complaint:
                print(f"{name}: #include {match[1]}{match[2]}: {complaint}")
                failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
