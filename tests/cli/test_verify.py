"""`mlaprefill verify`."""

import unittest

from tool import ToolTest, available_backends, run


class VerifyTest(ToolTest):
    def test_filtered_cases_pass_on_every_backend(self):
        for backend in available_backends():
            done = run("verify", "--backend", backend, "--filter", "merge")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertTrue(done.stdout.startswith(f"{backend}: "))
            self.assertRegex(done.stdout, r"[1-9]\d* cases: [1-9]\d* within tolerance, 0 mismatches")
            self.assertIn("merge", done.stdout)
            self.assertNotIn("layer/", done.stdout)

    def test_no_case_and_no_backend_are_refused(self):
        self.assert_refused(run("verify", "--backend", "reference", "--filter", "nothing"), "--filter", "'nothing'")
        self.assert_refused(run("verify", "--backend", "abacus"), "abacus")


if __name__ == "__main__":
    unittest.main()
