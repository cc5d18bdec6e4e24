"""`make gpu` without a GPU: one line says so, and nothing is done."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = ("Makefile", "requirements.txt", "pyproject.toml", "src", "tests")


@pytest.mark.skipif(shutil.which("make") is None, reason="not run here: no make")
def test_without_a_gpu_one_line_says_so(tmp_path):
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'No devices were found'\n")
    fake.chmod(0o755)
    (tmp_path / "clone").mkdir()
    for name in FILES:
        (tmp_path / "clone" / name).symlink_to(ROOT / name)
    # Of a parent make, as when the tests run under it, nothing is passed on.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environment["PATH"] = f"{fake.parent}:{environment['PATH']}"
    command = ["make", "--no-print-directory", "gpu"]
    done = subprocess.run(command, cwd=tmp_path / "clone", env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "'make gpu' needs an NVIDIA GPU and its driver, and nvidia-smi finds none here" in line
    assert sorted(os.listdir(tmp_path / "clone")) == sorted(FILES)
