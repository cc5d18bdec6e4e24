"""What all tests of the kernels share."""

import os
from contextlib import nullcontext

import pytest
import torch

from ptx_emulator import CompilingProcess
from twophase_kernels._triton import mode


@pytest.fixture(scope="session")
def compiling():
    """A process beside this one, for drivers that stand where this process's would."""
    with CompilingProcess() as process:
        yield process


@pytest.fixture(autouse=True)
def quick_compilation(monkeypatch):
    """Most kernels run once here, on little: not to optimise them at all takes half the time of -O1."""
    if os.environ.get("TRITON_ON_CPU_FLAGS") == "-O1":  # of tests/conftest.py
        monkeypatch.setenv("TRITON_ON_CPU_FLAGS", "-O0")


@pytest.fixture(autouse=True)
def poisoned_memory(request):
    """While a mutant is looked at, memory that was never written holds NaN, and each access is verified.

    A check runs the right kernel first. A mutant that leaves a result unwritten might find that kernel's in the memory
    it is given, and survive by that accident. One that reads or writes astray would end this process.
    """
    if request.node.get_closest_marker("mutants") is None or torch.cuda.is_available():
        yield
        return
    # torch fills what it allocates only while it is deterministic.
    torch.use_deterministic_algorithms(True, warn_only=True)
    with checked_launches():
        yield
    torch.use_deterministic_algorithms(False)


def checked_launches():
    if mode() != "cpu":
        return nullcontext()
    import triton_on_cpu  # not above: it imports triton, before which the mode must be known

    return triton_on_cpu.checked(time_limit_s=20)
