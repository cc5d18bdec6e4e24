"""Each kernel in Triton's interpreter, the debugger and what there is without a C compiler; and with all optimisation.

Elsewhere kernels are compiled with less, which is faster.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="not run here: no triton")


@pytest.mark.parametrize("how", ["interpreted", pytest.param("cpu", marks=pytest.mark.full)])
def test_each_kernel_in_a_process_of_its_own(how):
    """Triton's mode is fixed per process."""
    file, repository = Path(__file__).with_name("each_kernel.py"), Path(__file__).parents[2]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {
        "TWOPHASE_KERNELS": how,
        "TRITON_ON_CPU_FLAGS": "",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(repository), *sys.path]),
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", "-p", "no:cacheprovider", "-q", str(file)]
    done = subprocess.run(command, env=environment, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert (" skipped" in done.stdout) == (how == "cpu"), "what is about the interpreter"
