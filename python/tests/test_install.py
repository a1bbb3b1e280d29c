"""Installs the package as people do, into a virtual environment of its own, and imports it from there.

PYTHONS names more interpreters, with : between (pyenv's python3.8, say); one without venv or pip is skipped.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
USE = "import inferscope\nassert 'site-packages' in inferscope.__file__\nwith inferscope.scope('x'): print(inferscope.__version__)"


def run(*command):
    return subprocess.run(
        command, cwd=tempfile.gettempdir(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    )


class Install(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)
        self.copy = os.path.join(self.dir, "source")  # setuptools leaves files where it builds
        shutil.copytree(SOURCE, self.copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))

    def install(self, python, *flags):
        """Returns what an interpreter says that has the package installed by its own pip and setuptools."""
        venv = os.path.join(self.dir, "venv")
        made = run(python, "-m", "venv", "--clear", venv)
        if made.returncode:
            self.skipTest("%s makes no virtual environment: %s" % (python, made.stdout.strip().splitlines()[-1:]))
        inside = os.path.join(venv, "bin", "python")
        if flags:  # setuptools before 70.1 needs it
            run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", "wheel")
        got = run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *flags, self.copy)
        if got.returncode:
            self.skipTest("pip of %s: %s" % (python, got.stdout.strip().splitlines()[-1:]))
        return run(inside, "-c", USE)

    def check(self, *flags):
        tried = 0
        for python in [sys.executable] + [p for p in os.environ.get("PYTHONS", "").split(":") if p]:
            with self.subTest(python=python):
                done = self.install(python, *flags)
                self.assertEqual((done.returncode, done.stdout.strip()), (0, "0.1.0"))
                tried += 1
        self.assertGreater(tried, 0)

    def test_with_the_setuptools_that_is_there(self):
        """Without a network pip cannot fetch the setuptools that pyproject.toml asks for: an old one installed nothing,
        and said nothing."""
        if sys.version_info >= (3, 12):
            self.skipTest("virtual environments have no setuptools from Python 3.12 on")
        self.check("--no-build-isolation")

    def test_as_the_documents_say(self):
        self.check()


if __name__ == "__main__":
    unittest.main()
