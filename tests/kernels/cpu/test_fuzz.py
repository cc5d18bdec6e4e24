"""Random kernels give the same numbers compiled as in Triton's interpreter, and as GPU code in the emulator."""

import os
import subprocess
import sys

import pytest
import torch

from tests.kernels.cpu.fuzz import Writer
from tests.kernels.cpu.harness import PACKAGE, ROOT

EACH = 40  # kernels of one process: it takes seconds to start


def results(mode, folder, seeds):
    path = os.pathsep.join([str(ROOT), str(PACKAGE.parent), *sys.path])
    env = os.environ | {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.cpu.fuzz", mode, str(folder), *map(str, seeds)]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def compare(folder, seeds, *modes):
    for seed in seeds:
        (folder / f"fuzzed_{seed}.py").write_text(Writer(seed).write())
    processes = [results(mode, folder, seeds) for mode in modes]
    for mode, process in zip(modes, processes, strict=True):
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, f"{mode}: {errors[-3000:]}"
    first, second = (torch.load(folder / f"{mode}.pt") for mode in modes)
    for seed in seeds:
        for a, b in zip(first[seed], second[seed], strict=True):
            wrong = (a != b).nonzero().flatten()
            text = (folder / f"fuzzed_{seed}.py").read_text()
            assert not len(wrong), (
                f"seed {seed}: row {wrong[0] // 256}, element {wrong[0] % 256}: {a[wrong[0]]} and {b[wrong[0]]}\n{text}"
            )


def test_some_as_interpreted(tmp_path):
    compare(tmp_path, range(200, 208), "compiled", "interpreted")


@pytest.mark.full
@pytest.mark.parametrize("first", range(0, 160, EACH))
def test_as_interpreted(first, tmp_path):
    compare(tmp_path, range(first, first + EACH), "compiled", "interpreted")


@pytest.mark.full
def test_as_emulated(tmp_path):
    compare(tmp_path, range(1000, 1030), "compiled", "emulated")
