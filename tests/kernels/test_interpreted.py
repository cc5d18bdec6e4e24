"""Kernels still run in Triton's interpreter: it is the debugger, and what there is without a C compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="not run here: no triton")


def test_each_kernel_in_a_process_that_interprets():
    """Triton's mode is fixed per process. All else about kernels is tested compiled."""
    file, repository = Path(__file__).with_name("interpreted.py"), Path(__file__).parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "TWOPHASE_KERNELS": "interpreted",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(repository), *sys.path]),
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", "-p", "no:cacheprovider", "-q", str(file)]
    done = subprocess.run(command, env=environment, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout
