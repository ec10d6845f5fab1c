"""`mlaprefill attend` on files of an independent writer, against an independent fp64 answer."""

import math
import unittest

import oracle
from tensors import Tensor
from tool import ToolTest, available_backends, layer_case, plain_case, run

SCALE = 0.21
MODES = ("bridge", "min_continuation", "vllm", "even_split")
# Of the largest output; a lost key or a wrong scale is several times this in the cases here.
OUT_TOLERANCE = {"F32": 1e-5, "F16": 3e-3, "BF16": 2e-2}
LSE_TOLERANCE = {"F32": 1e-5, "F16": 4e-3, "BF16": 3e-2}


class AttendTest(ToolTest):
    def check(self, result, expected, dtype, case):
        out, lse = expected
        self.assertEqual(result["out"].dtype, dtype)
        self.assertEqual(result["lse"].dtype, "F32")
        largest = max((abs(value) for row in out for value in row), default=0.0)
        for got, want in zip(oracle.rows_of(result["out"]), out, strict=True):
            for a, b in zip(got, want, strict=True):
                self.assertLessEqual(abs(a - b), OUT_TOLERANCE[dtype] * largest, case)
        for a, b in zip(result["lse"].values, lse, strict=True):
            if math.isinf(b):
                self.assertEqual(a, b, case)
            else:
                self.assertLessEqual(abs(a - b), LSE_TOLERANCE[dtype], case)

    def test_layer_for_every_dtype_mode_workspace_and_path(self):
        query_lens, context_lens = [4, 0, 7, 1, 3], [9, 6, 0, 13, 0]
        for dtype in ("F32", "F16", "BF16"):
            tensors = layer_case(query_lens, context_lens, dtype)
            expected = oracle.layer(tensors, SCALE)
            for backend in available_backends():
                for mode in MODES:
                    for workspace in (64, 1000, 65536):
                        for path in ([], ["--composed"]):
                            args = ["--backend", backend, "--mode", mode, "--workspace-tokens", workspace, *path]
                            result = self.attend(tensors, *args, "--softmax-scale", SCALE)
                            self.assertEqual(result["out"].shape, [15, 2, 32])
                            self.assertEqual(result["lse"].shape, [2, 15])
                            self.check(result, expected, dtype, (dtype, args))

    def test_layer_in_many_passes(self):
        tensors = layer_case([4, 0, 7, 1, 3], [90, 6, 0, 13, 0], "F32")
        expected = oracle.layer(tensors, SCALE)
        for backend in available_backends():
            for mode in MODES:
                for workspace in (16, 40):
                    args = ["--backend", backend, "--mode", mode, "--workspace-tokens", workspace, "--composed"]
                    result = self.attend(tensors, *args, "--softmax-scale", SCALE)
                    self.check(result, expected, "F32", args)

    @unittest.skipUnless("cpu" in available_backends(), "needs the cpu backend")
    def test_layer_on_every_instruction_set_of_this_machine(self):
        tensors = layer_case([4, 0, 7], [70, 6, 0], "BF16", heads=3)
        expected = oracle.layer(tensors, SCALE)
        levels = [level for level in ("scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16")
                  if run("info", "--isa", level).returncode == 0]
        self.assertIn("scalar", levels)
        for level in levels:
            self.assertIn(f"cpu, {level} ", run("info", "--isa", level).stdout)
            for path in ([], ["--composed", "--workspace-tokens", 32]):
                result = self.attend(tensors, "--isa", level, "--softmax-scale", SCALE, *path)
                self.check(result, expected, "BF16", (level, path))

    def test_layer_in_every_cache_dtype(self):
        for cache_dtype in ("F32", "F16", "BF16", "F8_E4M3"):
            tensors = layer_case([3, 2], [7, 0], "BF16", cache_dtype)
            expected = oracle.layer(tensors, SCALE)
            for backend in available_backends():
                result = self.attend(tensors, "--backend", backend, "--softmax-scale", SCALE)
                self.check(result, expected, "BF16", (backend, cache_dtype))

    def test_layer_with_the_packed_cache(self):
        tensors = layer_case([2], [5], "BF16", "U8", heads=1, dims=(16, 64, 16, 512))
        expected = oracle.layer(tensors, 0.02)
        for backend in available_backends():
            result = self.attend(tensors, "--backend", backend, "--softmax-scale", 0.02)
            self.check(result, expected, "BF16", backend)

    def test_request_order_only_permutes_rows(self):
        lengths = [(4, 9), (0, 6), (7, 0), (1, 13)]
        for backend in available_backends():
            for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
                tensors = layer_case([lengths[r][0] for r in order], [lengths[r][1] for r in order])
                result = self.attend(tensors, "--backend", backend, "--softmax-scale", SCALE)
                self.check(result, oracle.layer(tensors, SCALE), "F32", order)

    def test_invariant_bytes_do_not_depend_on_workspace_or_company(self):
        for backend in available_backends():
            for path in ([], ["--composed"]):
                args = ["--backend", backend, "--softmax-scale", SCALE, "--invariant", *path]
                alone = self.attend(layer_case([5], [140], "BF16"), *args, "--workspace-tokens", 65536)
                size = len(alone["out"].data)
                for workspace in (64, 1000, 65536):
                    batch = layer_case([3, 5, 1], [70, 140, 0], "BF16")
                    result = self.attend(batch, *args, "--workspace-tokens", workspace)
                    begin = size * 3 // 5
                    self.assertEqual(result["out"].data[begin : begin + size], alone["out"].data, (args, workspace))
                    for h in range(2):
                        self.assertEqual(result["lse"].values[h * 9 + 3 : h * 9 + 8],
                                         alone["lse"].values[h * 5 : h * 5 + 5])

    def test_no_context_needs_no_cache(self):
        tensors = layer_case([3, 2], [0, 0])
        expected = oracle.layer(tensors, SCALE)
        del tensors["kv_cache"], tensors["block_table"]
        for backend in available_backends():
            for mode in MODES:
                result = self.attend(tensors, "--backend", backend, "--mode", mode, "--softmax-scale", SCALE)
                self.check(result, expected, "F32", (backend, mode))

    def test_empty_batches(self):
        layer = layer_case([], [])
        idle = layer_case([0, 0], [5, 0])
        plain = plain_case([], [])
        for backend in available_backends():
            for tensors, shape in ((layer, [0, 2, 32]), (idle, [0, 2, 32]), (plain, [0, 2, 16])):
                result = self.attend(tensors, "--backend", backend, "--softmax-scale", SCALE)
                self.assertEqual(result["out"].shape, shape)
                self.assertEqual(result["lse"].shape, [2, 0])

    def test_plain(self):
        for dtype in ("F32", "F16", "BF16"):
            # The second request has more queries than keys, the third no keys, the fourth no queries.
            tensors = plain_case([3, 6, 2, 0, 1], [8, 4, 0, 5, 1], dtype, heads=4, kv_heads=2)
            for causal, flag in ((True, "--causal"), (False, "--no-causal")):
                expected = oracle.plain(tensors, SCALE, causal)
                for backend in available_backends():
                    result = self.attend(tensors, flag, "--backend", backend, "--softmax-scale", SCALE)
                    self.assertEqual(result["out"].shape, [12, 4, 16])
                    self.check(result, expected, dtype, (dtype, flag, backend))

    def test_options_come_from_flags_or_metadata(self):
        tensors = plain_case([2, 3], [5, 3])
        metadata = {"softmax_scale": str(SCALE), "causal": "False", "format": "pt"}
        for backend in available_backends():
            result = self.attend(tensors, "--backend", backend, metadata=metadata)
            self.check(result, oracle.plain(tensors, SCALE, False), "F32", backend)
            result = self.attend(tensors, "--backend", backend, "--causal", "--softmax-scale=-0.5", metadata=metadata)
            self.check(result, oracle.plain(tensors, -0.5, True), "F32", backend)
            result = self.attend(tensors, "--backend", backend, metadata={"softmax_scale": str(SCALE)})
            self.check(result, oracle.plain(tensors, SCALE, True), "F32", backend)

    def test_any_layout_of_the_file(self):
        tensors = layer_case([3, 2], [7, 0])
        expected = oracle.layer(tensors, SCALE)
        tensors["kv_scale"] = Tensor("F32", [], [0.5])
        tensors["kv_cache"] = layer_case([3, 2], [7, 0], "F32", "F8_E4M3")["kv_cache"]
        expected = oracle.layer(tensors, SCALE)
        for backend in available_backends():
            for order in (sorted(tensors), sorted(tensors, reverse=True)):
                for padding in (" ", ""):
                    result = self.attend(tensors, "--backend", backend, "--softmax-scale", SCALE,
                                         order=order, padding=padding)
                    self.check(result, expected, "F32", (order, padding))


if __name__ == "__main__":
    unittest.main()
