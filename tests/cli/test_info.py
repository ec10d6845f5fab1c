"""`mlaprefill info`, `--version` and `--help`."""

import unittest

from tool import ToolTest, run


class InfoTest(ToolTest):
    def test_names_version_and_every_backend(self):
        done = run("info")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        version = run("--version").stdout.strip()
        self.assertTrue(done.stdout.startswith(f"mlaprefill {version}\n"), done.stdout)
        for backend in ("cpu", "reference", "sm90"):
            self.assertRegex(done.stdout, f"(?m)^backend {backend}: (not )?available\n  .+")

    def test_help_of_every_command(self):
        commands = run("--help")
        self.assertEqual(commands.returncode, 0)
        for command in ("info", "plan", "attend", "verify"):
            self.assertIn(command, commands.stdout)
            done = run(command, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("Usage:", done.stdout)


if __name__ == "__main__":
    unittest.main()
