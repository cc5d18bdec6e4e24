"""Random kernels give the same numbers compiled as in Triton's interpreter, and as GPU code in the emulator."""

import os
import subprocess
import sys

import pytest
import torch

from tests.kernels.cpu.fuzz import BEGIN, Writer, all_outputs

EACH = 40  # kernels of one process: it takes seconds to start


def interpreted(seeds, folder):
    """In a process of its own, for Triton's mode is fixed per process."""
    file = folder / "outputs.pt"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.cpu.fuzz", str(file), *map(str, seeds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(file)


def compare(seeds, others):
    for seed, own, other in zip(seeds, all_outputs(seeds, "compiled"), others, strict=True):
        for a, b in zip(own, other, strict=True):
            wrong = (a != b).nonzero().flatten()
            assert not len(wrong), (
                f"seed {seed}: row {wrong[0] // 256}, element {wrong[0] % 256}: {a[wrong[0]]} and {b[wrong[0]]}\n"
                + "\n".join(BEGIN + Writer(seed).write())
            )


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 160, EACH))
def test_as_interpreted(first, tmp_path):
    compare(range(first, first + EACH), interpreted(range(first, first + EACH), tmp_path))


@pytest.mark.full
def test_as_emulated(compiling):
    compare(range(1000, 1030), compiling.call(all_outputs, range(1000, 1030), "emulated"))
