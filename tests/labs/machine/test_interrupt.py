"""Ctrl-C ends a grading at once and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.machine.build import solved_notebook, to_text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run here: looks for processes in /proc")


def children_of(parent):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, its_parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(its_parent) == parent and state != "Z":
            found.append(int(stat.parent.name))
    return found


def is_running(pid):
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c(tmp_path):
    path = tmp_path / "01_demo.ipynb"
    path.write_text(to_text(solved_notebook(LAB)).replace("totals = x.cumsum(-1)", "while True: pass"))
    environment = {**os.environ, **DEMO.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "twophase_labs.commands.grade", str(path), "--jobs", "1"]
    grading = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (workers := children_of(grading.pid)):
            assert grading.poll() is None
            time.sleep(0.05)
        grading.send_signal(signal.SIGINT)
        assert grading.wait(20) != 0
    finally:
        grading.kill()
        grading.wait()
    deadline_s = time.monotonic() + 20  # on a busy machine a process takes its time to die
    while (left := [pid for pid in workers if is_running(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not left
