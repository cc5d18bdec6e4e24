"""Idle workers of a thread that computes no more: they end, and come back when they are needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="not run here: the system has no /proc")

BEGIN = """
import os, sys, time, torch
torch.set_num_threads(3)
from twophase import LLM, AsyncLLM
from twophase_features.serving.openmp import release_openmp_workers

def compute():
    torch.ones(1_000_000).exp()

def count():
    return len(os.listdir("/proc/self/task"))

def require(expected):
    deadline_s = time.monotonic() + 60  # for a thread to end
    while count() != expected and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert count() == expected, f"{count()} threads instead of {expected}"

release_openmp_workers()  # there are none
at_first = count()
compute()
require(at_first + 2)
"""


def run(program, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "opened", ["AsyncLLM(**options)", pytest.param("AsyncLLM.of(LLM(**options))", marks=pytest.mark.full)]
)
def test_an_engine_in_a_thread_has_the_cores_for_itself(opened, tiny_folder):  # noqa: F811
    """Of the thread that loaded the model no worker is left: the engine's thread alone has come."""
    run(
        f"""
options = dict(model=sys.argv[1], num_kv_blocks=64)
served = {opened}
require(at_first + 1)
served.close()
require(at_first)
compute()
require(at_first + 2)
""",
        str(tiny_folder),
    )
