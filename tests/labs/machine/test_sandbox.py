"""What an answer sees of the file system, where Python is not where it seems."""

import subprocess
import sys
import textwrap

import pytest

ASKS = textwrap.dedent("""
    import os, socket, sys
    from pathlib import Path
    from twophase_labs.machine.grading import sandbox

    def run():
        import numpy.random, twophase
        os.write(said, b"imported from " + sys.prefix.encode())
        os._exit(0)

    world = sandbox.World((*sandbox.importable(), Path(sys.argv[1])))
    if not (allowed := sandbox.what_is_allowed(world))[0]:
        sys.exit(f"not run here: {allowed[1]}")
    heard, said = os.pipe()
    here, there = socket.socketpair()
    sandbox.spawn(world, run, there, keep=[said])
    os.close(said)
    print(os.read(heard, 1000).decode())
    print(here.recv(1000).decode())
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
    assert ran.stdout.splitlines()[:1] == [f"imported from {tmp_path}/link/env"], ran.stdout + ran.stderr
