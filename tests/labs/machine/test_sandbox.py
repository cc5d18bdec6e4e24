"""What an answer sees of the file system, where Python is not where it seems."""

import subprocess
import sys
import textwrap

import pytest

ASKS = textwrap.dedent("""
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
""")


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
