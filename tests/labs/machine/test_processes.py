"""The grader's processes: what a fork does first, what it sees of the file system, its time, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.labs.demo import DEMO, LAB
from tests.labs.machine.test_attacks import descendants, processes
from twophase_labs.machine import limits
from twophase_labs.machine.build import solved_notebook, to_text
from twophase_labs.machine.limits import Allowance, OutOfTime, time_limit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run here: the grader forks on Linux only")

FORKS = """
import os, threading, torch
from twophase_labs.machine.grading.worker import renew_torch_in_forks

renew_torch_in_forks()
torch.set_num_threads(2)
renewed, renew = [], torch.set_num_threads
torch.set_num_threads = lambda number: (renewed.append((number, threading.active_count())), renew(number))
child = os.fork()
if child == 0:
    os._exit(renewed != [(2, 1)])
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or bool(renewed))
"""


def test_a_fork_renews_torchs_threads_before_it_has_any_other():
    """Eight threads that compute at once in a fork without this find no pool in one of seven forks, on a busy machine."""
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=120).returncode == 0


ASKS = """
import os, sys
from pathlib import Path
from twophase_labs.machine.grading import sandbox

def run(descriptor, folder):
    import numpy.random, twophase
    os.write(descriptor, b"imported from " + sys.prefix.encode())

world = sandbox.World((*sandbox.importable(), Path(sys.argv[1])))
if (isolation := sandbox.isolation_of(world)) != sandbox.NAMESPACES:
    sys.exit(f"not run here: {isolation}")
ended = sandbox.call(world, run, 60)
print(ended.said.decode(), ended.status)
"""


def test_an_environment_may_be_a_link_to_another(tmp_path):
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "env").symlink_to(sys.prefix)
    (tmp_path / "link").symlink_to(tmp_path / "outer")
    python = tmp_path / "link" / "env" / "bin" / "python"
    if not python.exists():
        pytest.skip("not run here: this Python is no environment")
    ran = subprocess.run([python, "-c", ASKS, __file__], capture_output=True, text=True, timeout=600)
    if "not run here" in ran.stderr:
        pytest.skip(ran.stderr)
    assert ran.stdout == f"imported from {tmp_path}/link/env 0\n", ran.stdout + ran.stderr


def work(cpu_s):
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass


def test_waiting_for_others_is_not_counted_and_work_and_sleep_are_stopped():
    with time_limit(2.0):
        time.sleep(2.5)  # as a machine that others use makes a process wait
        work(0.2)
    with pytest.raises(OutOfTime), time_limit(0.3):
        work(3.0)
    begun = time.monotonic()
    with pytest.raises(OutOfTime), time_limit(0.2):
        time.sleep(60)
    assert time.monotonic() - begun >= limits.LOAD * 0.2 - 0.01
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


# In the last but one, eight threads: the clock has not spent it.
@pytest.mark.parametrize(
    ("cpu_s", "clock_s", "left_s"), [(4, 9, 6), (9, 12, 1), (10, 12, 0), (1, 28, 2), (30, 4, 6), (1, 30, 0)]
)
def test_what_is_left(monkeypatch, cpu_s, clock_s, left_s):
    now = {"cpu": 100.0, "clock": 500.0}
    monkeypatch.setattr(limits, "process_time", lambda: now["cpu"])
    monkeypatch.setattr(limits, "monotonic", lambda: now["clock"])
    allowance = Allowance(10)
    now = {"cpu": now["cpu"] + cpu_s, "clock": now["clock"] + clock_s}
    assert allowance.left_s() == pytest.approx(left_s)


def test_ctrl_c_ends_a_grading_at_once_and_leaves_nothing_running(tmp_path):
    path = tmp_path / "01_demo.ipynb"
    path.write_text(to_text(solved_notebook(LAB)).replace("totals = x.cumsum(-1)", "while True: pass"))
    environment = {**os.environ, **DEMO.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "twophase_labs.commands.grade", str(path), "--jobs", "2"]
    grading = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (workers := descendants(grading.pid)):
            assert grading.poll() is None
            time.sleep(0.05)
        grading.send_signal(signal.SIGINT)
        assert grading.wait(20) != 0
    finally:
        grading.kill()
        grading.wait()
    deadline_s = time.monotonic() + 20  # on a busy machine a process takes its time to die
    while left := {pid for pid, _, state in processes() if state != "Z"} & {*workers}:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)
