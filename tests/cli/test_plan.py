"""`mlaprefill plan`: the keys other people script against, and the flags."""

import json
import unittest

from tool import ToolTest, run


class PlanTest(ToolTest):
    def plan(self, query_lens, context_lens, *args):
        done = run("plan", "--query-lens", query_lens, "--context-lens", context_lens, "--json", *args)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def spans(self, plan):
        return [[(s["request"], s["key_begin"], s["key_end"], s["continuation"]) for s in one["spans"]]
                for one in plan["passes"]]

    def test_json_keys(self):
        plan = self.plan("4,0,7", "2048,0,32", "--workspace-tokens", 1024, "--block-size", 16, "--mode", "bridge")
        self.assertEqual(plan["schema"], "mlaprefill.plan/1")
        self.assertEqual(plan["mode"], "bridge")
        self.assertEqual(plan["workspace_tokens"], 1024)
        self.assertEqual(plan["block_size"], 16)
        self.assertEqual(plan["requests"], 3)
        self.assertEqual(plan["verdict"], "mixed")
        self.assertEqual([one["index"] for one in plan["passes"]], [0, 1, 2])
        self.assertEqual(sum(one["rows"] for one in plan["passes"]), 2048 + 32 + 4 + 7)
        for one in plan["passes"]:
            self.assertEqual(one["kind"], "joint")
            self.assertIsInstance(one["all_rows_active"], bool)
            for span in one["spans"]:
                self.assertLessEqual({"request", "key_begin", "key_end", "continuation"}, span.keys())

    def test_vllm_mode_is_the_greedy_page_aligned_plan(self):
        plan = self.plan("5,5,5", "768,512,512", "--workspace-tokens", 1024, "--mode", "vllm")
        self.assertEqual(self.spans(plan), [
            [(0, 0, 768, False), (1, 0, 256, False)],
            [(1, 256, 512, True), (2, 0, 512, False)],
            [(0, 768, 773, False), (1, 512, 517, False), (2, 512, 517, False)],
        ])
        self.assertEqual([one["kind"] for one in plan["passes"]], ["context", "context", "new"])

    def test_min_continuation_cuts_no_request_there(self):
        plan = self.plan("5,5,5", "763,507,507", "--workspace-tokens", 1024, "--mode", "min_continuation")
        self.assertFalse(any(span[3] for one in self.spans(plan) for span in one))

    def test_every_flag_changes_the_plan(self):
        lens = ("100,3", "1000,77")
        base = self.plan(*lens, "--workspace-tokens", 300)
        self.assertNotEqual(self.spans(self.plan(*lens, "--workspace-tokens", 400)), self.spans(base))
        self.assertNotEqual(self.spans(self.plan(*lens, "--workspace-tokens", 300, "--mode", "even_split")),
                            self.spans(base))
        paged = ("--workspace-tokens", 300, "--mode", "vllm", "--block-size")
        self.assertNotEqual(self.spans(self.plan(*lens, *paged, 16)), self.spans(self.plan(*lens, *paged, 128)))
        cut = ("--workspace-tokens", 300, "--invariant", "--key-tile")
        for tile in (32, 128):
            spans = self.spans(self.plan(*lens, *cut, tile))
            self.assertTrue(all(begin % tile == 0 for one in spans for _, begin, _, _ in one), (tile, spans))

    def test_strict_refuses_what_the_published_repair_refuses(self):
        done = run("plan", "--query-lens", "4,0,7", "--context-lens", "1,1,1", "--strict")
        self.assert_refused(done, "1")
        self.assertEqual(self.plan("4,2,7", "1,1,1", "--strict")["verdict"], "active")

    def test_context_lens_may_be_left_out_and_batches_may_be_empty(self):
        done = run("plan", "--query-lens", "3,4", "--json")
        self.assertEqual(self.spans(json.loads(done.stdout)), [[(0, 0, 3, False), (1, 0, 4, False)]])
        self.assertEqual(self.plan("", "")["requests"], 0)
        self.assertEqual(self.plan("0,0", "5,0")["verdict"], "empty")

    def test_text_is_for_people(self):
        done = run("plan", "--query-lens", "4,0,7", "--context-lens", "2048,0,32", "--workspace-tokens", 1024)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("bridge", done.stdout)
        self.assertIn("mixed", done.stdout)

    def test_refusals_name_flag_and_value(self):
        for args, words in (
            (["--query-lens", "4,x"], ["--query-lens[1]", "'x'"]),
            (["--query-lens", "4,"], ["--query-lens[1]", "''"]),
            (["--query-lens=-1"], ["--query-lens[0]", "'-1'"]),
            (["--query-lens", "4 5"], ["--query-lens[0]", "'4 5'"]),
            (["--query-lens", "99999999999"], ["--query-lens[0]", "'99999999999'"]),
            (["--query-lens", "2147483647,1"], ["--query-lens: sum", "2147483648"]),
            (["--query-lens", "4,5", "--context-lens", "1"], ["--context-lens", "2 elements", "got 1"]),
            (["--query-lens", "4", "--mode", "best"], ["--mode", "best"]),
            (["--query-lens", "4", "--workspace-tokens", "0"], ["--workspace-tokens: must be an integer in 1 .. 2147483647, got '0'"]),
            (["--query-lens", "4", "--workspace-tokens", "many"], ["--workspace-tokens", "many"]),
            (["--query-lens", "4", "--workspace-tokens", "99999999999999999999"], ["--workspace-tokens", "9999"]),
            (["--query-lens", "4", "--workspace-tokens", "0x10"], ["--workspace-tokens", "'0x10'"]),
            (["--query-lens", "4", "--block-size", "-16"], ["--block-size", "'-16'"]),
            (["--query-lens", "4", "--key-tile", "0"], ["--key-tile", "'0'"]),
            ([], ["--query-lens"]),
        ):
            with self.subTest(args=args):
                self.assert_refused(run("plan", *args), *words)


if __name__ == "__main__":
    unittest.main()
