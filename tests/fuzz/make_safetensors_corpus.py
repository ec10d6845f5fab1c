#!/usr/bin/env python3
"""Writes tests/fuzz/corpus/safetensors_fuzz: small files of both kinds of case, whole and broken."""

import os
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
os.environ.setdefault("MLAPREFILL_BINARY", "")  # the case makers below run nothing
sys.path.insert(0, str(HERE.parent / "cli"))

from tensors import Tensor, image  # noqa: E402
from tool import layer_case, plain_case  # noqa: E402

DIMS = (16, 16, 16, 16)


def raw(header):
    return struct.pack("<Q", len(header)) + header.encode()


def files():
    layer = layer_case([2, 0, 1], [5, 3, 0], "BF16", heads=1, dims=DIMS)
    yield "layer", image(layer, {"softmax_scale": "0.1"})
    yield "layer_f8", image(layer_case([1], [3], "F16", "F8_E4M3", heads=1, dims=DIMS), {"qk_nope_head_dim": "16"})
    yield "layer_no_context", image({k: v for k, v in layer_case([2], [0], heads=1, dims=DIMS).items()
                                     if k not in ("kv_cache", "block_table")})
    yield "plain", image(plain_case([2, 1], [3, 0], "BF16", 4, 2, 4, 3), {"causal": "false"})
    yield "plain_misaligned", image(plain_case([1], [2], "F16", 1, 1, 3, 1), padding="")
    yield "block_id_too_large", image({**layer, "block_table": Tensor("I32", [3, 3], [9] * 9)})
    yield "lengths_disagree", image({**layer, "query_start_loc": Tensor("I32", [4], [0, 3, 2, 3])})
    yield "other_dtypes", raw('{"a":{"dtype":"F64","shape":[0,9],"data_offsets":[0,0]},"__metadata__":null}')
    yield "truncated", image(layer)[:-7]
    yield "trailing", image(plain_case([1], [1], "F32", 1, 1, 1, 1), trailing=b"xx")
    yield "size_overflow", raw('{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}')
    yield "deep", raw('{"a":' + "[" * 59)
    yield "length_too_large", b"\xff" * 8 + b"{}"
    yield "empty", b""


def main():
    folder = HERE / "corpus" / "safetensors_fuzz"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
