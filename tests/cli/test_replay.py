"""`mlaprefill replay` on small loads: reports, files, exit statuses, refusals."""

import json
import pathlib
import unittest

from tool import ToolTest, available_backends, run

SAMPLES = pathlib.Path(__file__).resolve().parent.parent / "data" / "traces"
TINY = ["--requests", "6", "--length-divisor", "256", "--tp", "64"]


class ReplayTest(ToolTest):
    def report(self, *args):
        """The JSON report of a run that must succeed."""
        path = self.folder / "report.json"
        done = run("replay", *args, "--json", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""), args)
        return json.loads(path.read_text())

    def test_every_sample_runs_whole(self):
        for name, rows in (("small.jsonl", 3), ("azure.csv", 2), ("lengths.csv", 2), ("session_lengths.csv", 4),
                           ("sessions", 4), ("sessions/one.json", 3)):
            report = self.report(SAMPLES / name, "--plan-only")
            self.assertEqual(report["schema"], "mlaprefill.replay/1")
            self.assertEqual(report["trace"]["rows"]["kept"], rows, name)
            self.assertEqual(report["prefix_cache"]["requests_completed"], rows, name)

    def test_computed_rows_are_checked_on_every_backend(self):
        for backend in available_backends():
            for more in ([], ["--composed", "--workspace-tokens", "64"]):
                report = self.report(*TINY, "--backend", backend, *more)
                self.assertGreater(report["check"]["rows"], 0)
                self.assertEqual(report["check"]["mismatches"], 0)

    def test_options_reach_the_run(self):
        report = self.report("--plan-only", "--requests", "20", "--workload", "fixed", "--model", "minicpm3", "--tp", "8",
                             "--budget", "4096", "--concurrency", "3", "--block-size", "32", "--cache-tokens", "65536",
                             "--arrivals", "timestamps", "--step-ms", "5", "--token-us", "7", "--mode", "vllm",
                             "--workspace-tokens", "2048", "--layers", "2", "--seed", "9")
        options = report["options"]
        self.assertEqual(options["schedule"], {
            "budget_tokens": 4096, "concurrency": 3, "block_tokens": 32, "cache_tokens": 65536, "arrivals": "timestamps",
            "time_model": {"step_s": 0.005, "token_s": 7e-06}})
        self.assertEqual(options["scaled"], {"tp": 8, "heads": 5, "layers": 2, "length_divisor": 1})
        self.assertEqual(options["plan"], {"mode": "vllm", "workspace_tokens": 2048, "invariant": False})
        self.assertEqual(options["seed"], 9)
        self.assertEqual(report["trace"]["rows"]["kept"], 20)
        self.assertIn("simulated_ttft_s", report["time"])

    def test_trace_options_reach_the_loader(self):
        long_row = self.folder / "long.csv"
        long_row.write_text("arrived_at,num_prefill_tokens\n0,40000\n250,10\n")
        kept = lambda *args: self.report(long_row, "--plan-only", "--model", "minicpm3", *args)["trace"]["rows"]
        self.assertEqual(kept()["dropped_over_limit"], 1)
        self.assertEqual(kept("--clamp")["clamped"], 1)
        self.assertEqual(kept("--requests", "1", "--clamp")["cut"], 1)
        session = self.report(SAMPLES / "sessions/one.json", "--plan-only")
        independent = self.report(SAMPLES / "sessions/one.json", "--plan-only", "--independent-turns")
        self.assertEqual((session["trace"]["sessions"], independent["trace"]["sessions"]), (1, 0))
        self.assertEqual(self.report(SAMPLES / "small.jsonl", "--plan-only", "--format", "mooncake",
                                     "--trace-block-tokens", "512")["trace"]["prefix_block_tokens"], 512)

    def test_same_seed_same_run(self):
        reports = [self.report(*TINY, "--backend", "reference") for _ in range(2)]
        for key in ("steps", "rows", "prefix_cache", "plans", "check"):
            self.assertEqual(reports[0][key], reports[1][key])

    def test_writes_page_and_timeline(self):
        page, timeline = self.folder / "r.html", self.folder / "t.json"
        done = run("replay", "--plan-only", "--requests", "5", "--html", page, "--timeline", timeline)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("<svg", page.read_text())
        self.assertTrue(json.loads(timeline.read_text())["traceEvents"])

    def test_bad_input_is_refused_and_outputs_stay(self):
        output = self.folder / "report.json"
        output.write_text("old")
        bad = self.folder / "bad.jsonl"
        bad.write_text('{"input_length": 5}\n{"input_length": 1000, "hash_ids": [1, 2, 3]}\n')
        for args, words in (
                ([bad], ["bad.jsonl:2", "must hold 2 ids", "334 to 499"]),
                ([self.folder / "missing.csv"], ["missing.csv"]),
                (["--model", "nothing"], ["deepseek-v3"]),
                (["--tp", "3"], ["must be a divisor of the model's 128 heads, got 3"]),
                (["--workload", "odd"], ["must be agentic or fixed"]),
                (["--mode", "odd"], ["mode"]),
                (["--arrivals", "odd"], ["must be closed or timestamps"]),
                (["--device", "odd"], ["must be cpu or cuda"]),
                (["--time-unit", "h", SAMPLES / "small.jsonl"], ["must be s, ms or us"]),
                (["--budget", "0"], ["--budget", "0"]),
                (["--layers", "62"], ["must be 1 to the model's 61, got 62"]),
                (["--block-size", "48", SAMPLES / "small.jsonl"], ["must divide"]),
                (["--workload", "fixed", SAMPLES / "small.jsonl"], ["must be left out with a trace file"]),
                (["--length-divisor", "2", SAMPLES / "small.jsonl"], ["must be left out with a trace file"]),
        ):
            done = run("replay", "--plan-only", "--json", output, *args)
            self.assert_refused(done, *words)
            self.assertEqual(output.read_text(), "old")
        self.assert_refused(run("replay", "--plan-only", "--json", self.folder / "no" / "r.json"), "r.json")
        self.assert_refused(run("replay", *TINY, "--backend", "odd"), "odd")
        self.assert_refused(run("replay", *TINY, "--weights", bad), "bad.jsonl")


if __name__ == "__main__":
    unittest.main()
