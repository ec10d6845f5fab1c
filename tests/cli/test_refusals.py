"""Bad files and flags: exit status 2, one clear line, outputs untouched."""

import os
import struct
import unittest

from tensors import Tensor, image
from tool import ToolTest, available_backends, layer_case, plain_case, run


class RefusalTest(ToolTest):
    def refuse(self, case, *args, words=(), backend="reference"):
        """The case, a path or bytes or tensors, is refused and an old output stays as it was."""
        path = self.folder / "case.safetensors"
        if isinstance(case, bytes):
            path.write_bytes(case)
        elif isinstance(case, dict):
            path.write_bytes(image(case, {"softmax_scale": "0.1"}))
        else:
            path = case
        self.out.write_text("old")
        done = run("attend", path, "-o", self.out, "--backend", backend, *args)
        self.assert_refused(done, *words)
        self.assertEqual(self.out.read_text(), "old")
        self.assertEqual([p.name for p in self.folder.iterdir() if "tmp" in p.name], [])
        return done.stderr

    def test_command_line(self):
        self.assert_refused(run(), "subcommand")
        self.assert_refused(run("fly"), "command: must be one of ", "'fly'")
        self.assert_refused(run("info", "--fast"), "--fast")
        self.assert_refused(run("attend"), "required")
        self.assert_refused(run("attend", "case"), "--output")

    def test_files(self):
        self.refuse(self.folder / "none", words=["none: cannot open: No such file"])
        self.refuse(self.folder, words=["must be a regular file"])
        self.refuse(b"", words=["8 bytes of header length"])
        whole = image(plain_case([2], [3]), {"softmax_scale": "0.1"})
        for size in range(0, len(whole), 37):
            self.refuse(whole[:size], words=["case.safetensors: "])
        self.refuse(whole + b"x", words=["must end after"])
        self.refuse(struct.pack("<Q", 2**63) + b"{}", words=["header length"])

    def test_outputs(self):
        case = self.write_case(plain_case([2], [3]), {"softmax_scale": "0.1"})
        before = case.read_bytes()
        self.assert_refused(run("attend", case, "-o", case, "--backend", "reference"), "--output", "another file")
        self.assertEqual(case.read_bytes(), before)
        missing = self.folder / "none" / "out"
        self.assert_refused(run("attend", case, "-o", missing, "--backend", "reference"), "cannot create")
        self.assert_refused(run("attend", case, "-o", "/dev/full", "--backend", "reference"), "/dev/full", "No space")
        with open("/dev/full", "w") as full:
            done = run("info", stdout=full)
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_flags(self):
        case = plain_case([2], [3])
        self.refuse(case, backend="gpu", words=["gpu", "reference", "cpu", "sm90"])
        self.refuse(case, "--backend", "cpu", words=["--backend", "2"])
        self.refuse(case, "--causal", "--no-causal", words=["--causal", "--no-causal"])
        self.refuse(case, "--mode", "best", words=["--mode", "best", "bridge"])
        self.refuse(case, "--softmax-scale", "big", words=["--softmax-scale", "big"])
        self.refuse(case, "--softmax-scale", "inf", words=["softmax_scale", "inf"])
        self.refuse(case, "--threads", "-1", words=["--threads", "-1"])
        self.refuse(case, "--qk-nope-head-dim", "16", words=["qk_nope_head_dim", "16"])
        layer = layer_case([2], [3])
        self.refuse(layer, "--qk-nope-head-dim", "32", words=["qk_nope_head_dim", "16", "32"])
        self.refuse(layer, "--no-causal", words=["causal"])
        self.refuse(layer, "--workspace-tokens", "0", words=["--workspace-tokens", "'0'"])

    def test_missing_scale(self):
        self.refuse(image(plain_case([2], [3])), words=["softmax_scale: must be given by --softmax-scale"])

    def test_strict(self):
        self.refuse(layer_case([2, 0], [3, 3]), "--strict", words=["1"])
        self.refuse(plain_case([2, 0], [3, 3]), "--strict", words=["1 of 2 inactive: [1]"])
        self.refuse(plain_case([2, 1], [3, 0]), "--strict", words=["1 of 2 inactive: [1]"])
        for case in (plain_case([2, 1], [3, 2]), plain_case([0, 1], [3, 0])):
            path = self.write_case(case, {"softmax_scale": "0.1"})
            self.assertEqual(run("attend", path, "-o", self.out, "--backend", "reference", "--strict").returncode, 0)

    def test_lengths(self):
        def changed(case, **tensors):
            return {**case, **{name: Tensor("I32", [len(values)], values) for name, values in tensors.items()}}

        layer, plain = layer_case([2, 3], [5, 0]), plain_case([2, 3], [4, 5])
        for case, words in (
            (changed(layer, query_start_loc=[1, 2, 5]), ["query_start_loc[0]", "1"]),
            (changed(layer, query_start_loc=[0, 6, 5]), ["query_start_loc[2]", "6", "5"]),
            (changed(layer, query_start_loc=[0, 2, 9]), ["query_start_loc", "5", "9"]),
            (changed(layer, query_start_loc=[]), ["query_start_loc"]),
            (changed(layer, context_lens=[5]), ["context_lens"]),
            (changed(layer, context_lens=[-5, 0]), ["context_lens[0]", "-5"]),
            (changed(layer, context_lens=[500, 0]), ["block_table"]),
            (changed(plain, cu_seqlens_q=[1, 2, 5]), ["cu_seqlens_q[0]", "1"]),
            (changed(plain, cu_seqlens_q=[0, 6, 5]), ["cu_seqlens_q[2]"]),
            (changed(plain, cu_seqlens_k=[0, 4, 20]), ["cu_seqlens_k", "20", "9"]),
            (changed(plain, cu_seqlens_k=[0, 9]), ["cu_seqlens_k"]),
            (changed(plain, cu_seqlens_q=[]), ["cu_seqlens_q"]),
        ):
            with self.subTest(words=words):
                self.refuse(case, words=words)

    def test_block_ids(self):
        layer = layer_case([2], [5])
        for block in (-1, 99, -2**31):
            values = layer["block_table"].values
            values[1] = block
            self.refuse({**layer, "block_table": Tensor("I32", layer["block_table"].shape, values)},
                        words=["block_table[0][1]", str(block)])

    def test_wrong_and_unknown_tensors(self):
        layer = layer_case([2], [5])
        self.refuse({**layer, "query_start_loc": Tensor("I64", [2], [0, 2])},
                    words=["query_start_loc: dtype must be I32, got I64"])
        self.refuse({**layer, "mask": Tensor("U8", [1], [0])}, words=["got 'mask'", "kv_b_proj"])
        self.refuse({**layer, "evil\x1b[2J": Tensor("U8", [1], [0])}, words=["'evil\\x1b[2J'"])
        without = dict(layer)
        del without["kv_b_proj"]
        self.refuse(without, words=["kv_b_proj: must be in the file"])
        self.refuse({"q": layer["q"]}, words=["layer case", "plain case"])

    @unittest.skipUnless("cpu" in available_backends(), "needs the cpu backend")
    def test_isa_levels_of_no_machine(self):
        self.refuse(plain_case([2], [3]), "--isa", "avx9000", words=["avx9000", "avx2"], backend="cpu")

    def test_notes_name_options_that_do_not_concern_a_plain_case(self):
        case = self.write_case(plain_case([2], [3]), {"softmax_scale": "0.1"})
        done = run("attend", case, "-o", self.out, "--backend", "reference", "--workspace-tokens", 64, "--composed")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("note:"), 2)
        self.assertIn("--workspace-tokens", done.stderr)
        self.assertTrue(os.path.getsize(self.out) > 0)


if __name__ == "__main__":
    unittest.main()
