"""Running the tool under test, and random cases for it."""

import os
import pathlib
import random
import subprocess
import tempfile
import unittest

from tensors import SIZES, Tensor, image, read

BINARY = os.environ["MLAPREFILL_BINARY"]


def run(*args, **options):
    """The finished process of `mlaprefill ARGS`; text output."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run([BINARY, *map(str, args)], **{**pipes, **options}, text=True, timeout=120)


def available_backends():
    """Host backends that `info` calls available."""
    lines = run("info").stdout.splitlines()
    names = [line.split()[1].rstrip(":") for line in lines if line.startswith("backend") and "not" not in line]
    return [name for name in names if name in ("reference", "cpu")]


class ToolTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "out.safetensors"

    def write_case(self, tensors, metadata=None, **options):
        path = self.folder / "case.safetensors"
        path.write_bytes(image(tensors, metadata, **options))
        return path

    def attend(self, tensors, *args, metadata=None, **options):
        """(out rows, lse values, tensors) of a case the tool must accept."""
        path = self.write_case(tensors, metadata, **options)
        done = run("attend", path, "-o", self.out, *args)
        self.assertEqual((done.returncode, done.stderr), (0, ""), args)
        result, _ = read(self.out)
        return result

    def assert_refused(self, done, *words):
        """Exit status 2, nothing on standard output, and a message that has the words."""
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        for word in words:
            self.assertIn(word, done.stderr)


def randoms(generator, count, spread=1.0):
    return [generator.uniform(-spread, spread) for _ in range(count)]


def layer_case(query_lens, context_lens, dtype="F32", cache_dtype=None, heads=2, seed=1, block_size=4,
               dims=(16, 16, 32, 48)):
    """A layer case with shuffled cache blocks; each request's numbers depend on its lengths alone."""
    nope, rope, v_dim, rank = dims
    cache_dtype = cache_dtype or dtype
    tokens = sum(query_lens)
    shared = random.Random(seed)
    tensors = {"kv_b_proj": Tensor(dtype, [heads * (nope + v_dim), rank],
                                   randoms(shared, heads * (nope + v_dim) * rank, 0.3))}
    blocks_of = [-(-context // block_size) for context in context_lens]
    block_count = sum(blocks_of) + 1
    ids = list(range(block_count))
    shared.shuffle(ids)
    width = 656 if cache_dtype == "U8" else rank + rope
    # All bits set is NaN in every float format: an unused slot that is read shows.
    slots = [b"\xff" * (width * SIZES[cache_dtype])] * (block_count * block_size)
    parts = {"q": [], "kv_latent": [], "k_rope": []}
    columns = max(blocks_of, default=0) + 1
    table = []
    for queries, context, blocks in zip(query_lens, context_lens, blocks_of):
        own = random.Random(f"{seed} {queries} {context}")
        parts["q"] += randoms(own, queries * heads * (nope + rope))
        parts["kv_latent"] += randoms(own, queries * rank)
        parts["k_rope"] += randoms(own, queries * rope)
        used = [ids.pop() for _ in range(blocks)]
        table += used + [-1] * (columns - blocks)
        for j in range(context):
            slots[used[j // block_size] * block_size + j % block_size] = cache_row(own, cache_dtype, rank, rope)
    tensors["q"] = Tensor(dtype, [tokens, heads, nope + rope], parts["q"])
    tensors["kv_latent"] = Tensor(dtype, [tokens, rank], parts["kv_latent"])
    tensors["k_rope"] = Tensor(dtype, [tokens, rope], parts["k_rope"])
    tensors["query_start_loc"] = Tensor("I32", [len(query_lens) + 1],
                                        [sum(query_lens[:r]) for r in range(len(query_lens) + 1)])
    tensors["context_lens"] = Tensor("I32", [len(context_lens)], context_lens)
    tensors["kv_cache"] = Tensor(cache_dtype, [block_count, block_size, width], data=b"".join(slots))
    tensors["block_table"] = Tensor("I32", [len(query_lens), columns], table)
    if cache_dtype == "F8_E4M3":
        tensors["kv_scale"] = Tensor("F32", [1], [0.5])
    return tensors


def cache_row(generator, dtype, rank, rope):
    """Bytes of one cached token."""
    if dtype != "U8":
        return Tensor(dtype, [rank + rope], randoms(generator, rank + rope)).data
    latent = Tensor("F8_E4M3", [512], randoms(generator, 512, 4.0)).data
    scales = Tensor("F32", [4], [0.25, 0.5, 0.125, 0.3]).data
    return latent + scales + Tensor("BF16", [64], randoms(generator, 64)).data


def plain_case(q_lens, k_lens, dtype="F32", heads=2, kv_heads=2, qk_dim=32, v_dim=16, seed=1):
    generator = random.Random(seed)
    tokens, keys = sum(q_lens), sum(k_lens)
    return {
        "q": Tensor(dtype, [tokens, heads, qk_dim], randoms(generator, tokens * heads * qk_dim)),
        "k": Tensor(dtype, [keys, kv_heads, qk_dim], randoms(generator, keys * kv_heads * qk_dim)),
        "v": Tensor(dtype, [keys, kv_heads, v_dim], randoms(generator, keys * kv_heads * v_dim)),
        "cu_seqlens_q": Tensor("I32", [len(q_lens) + 1], [sum(q_lens[:r]) for r in range(len(q_lens) + 1)]),
        "cu_seqlens_k": Tensor("I32", [len(k_lens) + 1], [sum(k_lens[:r]) for r in range(len(k_lens) + 1)]),
    }
