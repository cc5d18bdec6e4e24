"""A folder made atomically: killed anywhere, it is absent, and the next run completes it."""

import errno
import signal
import subprocess
import sys

import pytest

from twophase_features.model_store._atomic_folder import (
    build,
    changed_files,
    is_complete,
    only_one_process,
)

RECIPE = {"version": 1}
CONTENTS = {"big": b"b" * 100_000, "small": b"s"}


def files():
    return {name: lambda content=content: content for name, content in CONTENTS.items()}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_build_gives_the_files_and_nothing_beside_them(tmp_path):
    target = tmp_path / "model"
    build(target, RECIPE, files())
    assert {name: (target / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert names(target) == ["big", "manifest.json", "small"]
    assert names(tmp_path) == ["model"]
    assert is_complete(target, RECIPE)
    assert changed_files(target) == []


def test_another_recipe_or_a_missing_or_shorter_file_is_not_complete(tmp_path):
    target = tmp_path / "model"
    assert not is_complete(target, RECIPE)
    build(target, RECIPE, files())
    assert not is_complete(target, {"version": 2})
    (target / "small").write_bytes(b"")
    assert not is_complete(target, RECIPE)
    (target / "small").unlink()
    assert not is_complete(target, RECIPE)


def test_changed_contents_are_found_and_a_rebuild_replaces_them(tmp_path):
    target = tmp_path / "model"
    build(target, RECIPE, files())
    (target / "small").write_bytes(b"x")
    (target / "stray").touch()
    assert changed_files(target) == ["small"]
    build(target, RECIPE, files())
    assert changed_files(target) == []
    assert names(tmp_path) == ["model"]
    assert "stray" not in names(target)


KILLED = """
import os, signal, sys
from pathlib import Path
from twophase_features.model_store import _atomic_folder as atomic_folder

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

point = sys.argv[2]
files = {"big": lambda: b"b" * 100_000, "small": die if point == "making" else lambda: b"s"}
if point == "before the rename":
    Path.rename = die
atomic_folder.build(Path(sys.argv[1]), {"version": 1}, files)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="not run here: SIGKILL is POSIX")
@pytest.mark.parametrize("point", ["making", "before the rename"])
def test_killed_run_leaves_no_folder_and_the_next_succeeds(point, tmp_path):
    target = tmp_path / "model"
    done = subprocess.run([sys.executable, "-c", KILLED, target, point], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    build(target, RECIPE, files())
    assert changed_files(target) == []
    assert names(target) == ["big", "manifest.json", "small"]
    assert names(tmp_path) == ["model"]


@pytest.mark.parametrize("stopped_by", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_run_that_stops_leaves_nothing(stopped_by, tmp_path):
    def stop():
        raise stopped_by

    with pytest.raises(type(stopped_by)):
        build(tmp_path / "model", RECIPE, files() | {"small": stop})
    assert names(tmp_path) == []


HOLDS_LOCK = """
import sys, time
from pathlib import Path
from twophase_features.model_store._atomic_folder import only_one_process
with only_one_process(Path(sys.argv[1]), lambda: None):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_second_process_waits_until_the_first_is_gone_however_it_ended(tmp_path):
    target, waited = tmp_path / "model", []
    with subprocess.Popen([sys.executable, "-c", HOLDS_LOCK, target], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"

        def on_wait():
            waited.append(True)
            holder.kill()

        with only_one_process(target, on_wait):
            assert waited == [True]
    with only_one_process(target, lambda: waited.append(False)):
        assert waited == [True]
