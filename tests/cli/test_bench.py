"""`mlaprefill bench`: the result file, the paired mode and refusals, on small shapes."""

import json
import unittest

from tool import ToolTest, run

SMALL = ("--shape", "short-64x4", "--shape", "layer-8x4", "--heads", "2", "--threads", "1")


class Bench(ToolTest):
    def measure(self, *args):
        path = self.folder / "bench.json"
        done = run("bench", *SMALL, *args, "--json", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(path.read_text()), done.stdout

    def test_result_file(self):
        result, table = self.measure("--rounds", "2", "--isa", "scalar")
        self.assertEqual(result["schema"], "mlaprefill.bench/1")
        self.assertTrue(result["command"].startswith("mlaprefill bench --shape short-64x4"))
        self.assertLessEqual({"commit", "build", "machine", "peaks"}, result.keys())
        self.assertEqual((result["isa"], result["subject"]["heads"]), ("scalar", 2))
        attention, layer = result["results"]
        # 64 requests of 4 tokens: 10 visible pairs each; 640 FLOP a pair and head.
        self.assertEqual((attention["attention_flop"], attention["expand_flop"]), (64 * 10 * 640 * 2, 0))
        self.assertEqual(layer["expand_flop"], 8 * 4 * 2 * 262144)
        for row in attention, layer:
            self.assertEqual(len(row["timing"]["rounds_seconds"]), 2)
            self.assertGreater(row["timing"]["min_seconds"], 0)
            self.assertIn(row["shape"], table)

    def test_paired_mode_compares_with_the_changed_configuration(self):
        result, table = self.measure("--rounds", "6", "--against", "backend=reference")
        self.assertEqual(result["against"]["backend"], "reference")
        for row in result["results"]:
            self.assertLessEqual(row["ratio"]["low"], row["ratio"]["median"])
            self.assertLessEqual(row["ratio"]["median"], row["ratio"]["high"])
            self.assertEqual(row["verdict"], "better")
        self.assertIn("verdict", table)

    def test_list(self):
        done = run("bench", "--list")
        self.assertEqual(done.returncode, 0)
        self.assertIn("causal-2048", done.stdout)

    def test_refusals(self):
        self.assert_refused(run("bench", "--shape", "nope"), "--shape", "nope")
        self.assert_refused(run("bench", *SMALL, "--against", "isa"), "--against", "isa=LEVEL", "'isa'")
        self.assert_refused(run("bench", *SMALL, "--rounds", "5", "--against", "isa=scalar"), "--rounds", ">= 6", "5")
        self.assert_refused(run("bench", "--heads", "257"), "--heads", "1 .. 256", "257")


if __name__ == "__main__":
    unittest.main()
