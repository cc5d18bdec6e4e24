"""A command that starts ranks by itself."""

import subprocess
import sys

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)


def twophase(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "twophase_tools", *args], capture_output=True, text=True, timeout=120)


def test_generate_with_two_ranks_prints_what_one_process_prints(tiny_folder):  # noqa: F811
    args = ("generate", "a tiny prompt", "--model", str(tiny_folder), "--regex", "[a-z]{6}")
    alone, shared = twophase(*args), twophase(*args, "--tensor-parallel-size", "2")
    assert (shared.returncode, shared.stdout) == (0, alone.stdout)
    assert len(alone.stdout.strip()) == 6
