"""Idle workers of a thread that computes no more: they end, and come back when they are needed. And what a fork of the
process has: neither workers nor an engine's thread."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from twophase import LLM, AsyncLLM
from twophase.core.errors import EngineDeadError

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


def test_they_end_and_come_back():
    run("""
release_openmp_workers()
require(at_first)
compute()
require(at_first + 2)
""")


@pytest.mark.parametrize("opened", ["AsyncLLM(**options)", "AsyncLLM.of(LLM(**options))"])
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


def test_a_fork_serves_or_refuses(tiny_folder):  # noqa: F811
    """With an LLM it serves. It lacks the thread of an AsyncLLM, which is in the middle of something."""
    run(
        """
import asyncio, signal, threading
from twophase import SamplingParams
from twophase.core.errors import EngineDeadError, InvalidRequestError

def generate():
    return llm.generate("The quick brown fox", SamplingParams(temperature=0, max_tokens=8), False)[0].outputs

def in_fork(check):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # against a hang
        check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def serves():
    assert generate() == expected

def refuses():
    submit = lambda: asyncio.run(served.submit("a"))
    for call in submit, served.check_acceptance, generate, lambda: AsyncLLM.of(llm):
        try:
            call()
        except (EngineDeadError, InvalidRequestError) as error:
            assert "fork" in str(error) and "'spawn'" in str(error), error
        else:
            raise AssertionError("not refused")
    assert not served.is_alive and served.num_waiting == 0 and asyncio.run(served.drain())
    served.close()

def hold():
    with served._thread._changed:  # it stays locked in the fork
        is_held.set()
        go_on.wait()

llm = LLM(sys.argv[1], num_kv_blocks=64, device="cpu")
expected = generate()
in_fork(serves)
served, is_held, go_on = AsyncLLM.of(llm), threading.Event(), threading.Event()
threading.Thread(target=hold, daemon=True).start()
is_held.wait()
in_fork(refuses)
go_on.set()
served.close()
serves()
in_fork(serves)
""",
        str(tiny_folder),
    )


@pytest.mark.unchecked_types
def test_a_fork_leaves_its_parents_ranks_alone(tiny_folder, monkeypatch):  # noqa: F811
    llm = LLM(tiny_folder, num_kv_blocks=64, device="cpu")
    monkeypatch.setattr(llm, "_pid", -1)
    monkeypatch.setattr(llm, "config", replace(llm.config, tensor_parallel_size=2))
    for call in (lambda: llm.generate("a"), lambda: next(llm.stream("a")), lambda: AsyncLLM.of(llm)):
        with pytest.raises(EngineDeadError, match=r"fork .* 'spawn'"):
            call()
