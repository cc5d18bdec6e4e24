"""Ctrl-C ends a grading at once and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.labs.demo import DEMO, LAB
from tests.labs.machine.test_attacks import descendants, processes
from twophase_labs.machine.build import solved_notebook, to_text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run here: looks for processes in /proc")


def test_ctrl_c(tmp_path):
    path = tmp_path / "01_demo.ipynb"
    path.write_text(to_text(solved_notebook(LAB)).replace("totals = x.cumsum(-1)", "while True: pass"))
    environment = {**os.environ, **DEMO.environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "twophase_labs.commands.grade", str(path), "--jobs", "1"]
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
    while (
        left := {pid for pid, _, state in processes() if state != "Z"} & {*workers}
    ) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not left
