"""`make gpu`: one line and nothing done without a GPU; with one, what runs in which order."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="not run here: no make")


@pytest.fixture
def make(tmp_path):
    """Runs the Makefile in a folder without an installation, with an nvidia-smi that prints `says`."""

    def run(*args, says):
        tools = tmp_path / "bin"
        tools.mkdir()
        fake = tools / "nvidia-smi"
        fake.write_text(f"#!/bin/sh\necho '{says}'\n")
        fake.chmod(0o755)
        folder = tmp_path / "clone"
        folder.mkdir()
        for name in ("Makefile", "requirements.txt", "pyproject.toml", "src", "tests"):
            (folder / name).symlink_to(ROOT / name)
        before = sorted(folder.iterdir())
        # Of a parent make, as when the tests run under it, nothing is passed on.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        environment["PATH"] = f"{tools}:{environment['PATH']}"
        command = ["make", "--no-print-directory", *args]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
        assert sorted(folder.iterdir()) == before  # nothing was installed
        return done

    return run


def test_without_a_gpu_one_line_says_so(make):
    done = make("gpu", says="No devices were found")
    assert done.returncode == 2  # as whenever make fails
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "'make gpu' needs an NVIDIA GPU and its driver, and nvidia-smi finds none here" in line


def test_with_a_gpu_it_checks_tests_and_measures(make):
    done = make("-n", "gpu", says="GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)")
    assert done.returncode == 0, done.stderr
    steps = [
        "twophase model prepare",
        "twophase doctor",
        "torch.cuda.is_available()",
        "twophase bench kernels --dry-run",
        'tests/kernels -m "not mutants"',
        "-m gpu --ignore=tests/kernels",
        "twophase bench kernels --results kernels/results",
        "status=1; \\\nexit $status",
    ]
    places = [done.stdout.find(step) for step in steps]
    assert places == sorted(places)
    assert -1 not in places
    assert done.stdout.count("--maxprocesses=4") == 2
