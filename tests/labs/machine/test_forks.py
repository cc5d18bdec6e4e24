"""What a fork of a process with torch does first."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, threading, torch
from twophase_labs.machine.forks import renew_torch_in_forks

renew_torch_in_forks()
torch.set_num_threads(2)
renewed, renew = [], torch.set_num_threads
torch.set_num_threads = lambda number: (renewed.append((number, threading.active_count())), renew(number))
child = os.fork()
if child == 0:
    os._exit(renewed != [(2, 1)])
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or bool(renewed))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="not run here: Windows has no forks")
def test_a_fork_renews_torchs_threads_before_it_has_any_other() -> None:
    """Eight threads that compute at once in a fork without this find no pool in one of seven forks, on a busy machine."""
    assert subprocess.run([sys.executable, "-c", PROGRAM], timeout=120).returncode == 0
