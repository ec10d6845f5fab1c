"""The commands and the script of docs/cli.md run as printed."""

import pathlib
import re
import subprocess
import sys
import unittest

from tensors import read
from tool import BINARY, ToolTest, available_backends, run

DOCUMENT = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


class DocsTest(ToolTest):
    def run_line(self, line):
        words = line.split()
        self.assertEqual(words[0], "mlaprefill")
        return run(*words[1:], cwd=self.folder)

    @unittest.skipUnless("cpu" in available_backends(), "needs the cpu backend")
    def test_example(self):
        (script,) = blocks("python")
        subprocess.run([sys.executable, "-c", script], cwd=self.folder, check=True)
        line = blocks("sh")[-1]
        done = self.run_line(line)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        tensors, metadata = read(self.folder / "out.safetensors")
        self.assertEqual(tensors["out"].shape, [3, 4, 32])
        self.assertEqual(tensors["lse"].shape, [4, 3])
        self.assertEqual(metadata, {"schema": "mlaprefill.attend/1", "backend": "cpu"})

    def test_plan_example(self):
        done = self.run_line(blocks("sh")[0])
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_every_option_is_documented(self):
        for command in ("info", "plan", "attend", "verify"):
            for option in re.findall(r"--[a-z-]+", subprocess.run([BINARY, command, "--help"], capture_output=True,
                                                                  text=True, check=True).stdout):
                if option != "--help":
                    self.assertTrue(re.search(rf"`{option}\b", DOCUMENT), (command, option))


if __name__ == "__main__":
    unittest.main()
