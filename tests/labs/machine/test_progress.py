"""A learner's file survives crashes, corruption and full disks."""

import json
import os

import pytest

from twophase_labs.machine.progress import Progress, progress_path


def path_in(folder):
    return progress_path(folder / "01_demo.ipynb")


def attempt(entry):
    entry["attempts"] = entry.get("attempts", 0) + 1


def raising(error):
    def fail(*args):
        raise error

    return fail


def test_events_add_up_across_kernels(tmp_path):
    path = path_in(tmp_path)
    assert path.name == "01_demo.progress.json"
    assert Progress(path).of("1.1") == {}
    Progress(path).record("1.1", attempt)
    Progress(path).record("1.2", lambda e: e.update(prediction=3.0))
    assert Progress(path).record("1.1", attempt) == {"attempts": 2}
    assert Progress(path).all() == {"1.1": {"attempts": 2}, "1.2": {"prediction": 3.0}}
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"exercises": 3}', b"\xff\xfe", b'{"exercises": {"1.1": 7}', b"[" * 10**5]
)
def test_a_broken_file_is_moved_aside_and_told(tmp_path, content):
    path = path_in(tmp_path)
    path.write_bytes(content)
    progress = Progress(path)
    assert progress.record("1.1", attempt) == {"attempts": 1}
    (note,) = progress.take_notes()
    assert "moved to 01_demo.progress.broken.json" in note
    assert progress.take_notes() == ()
    assert (path.parent / "01_demo.progress.broken.json").read_bytes() == content
    assert json.loads(path.read_text())["exercises"] == {"1.1": {"attempts": 1}}
    for number in (2, 3):  # each under a name that is free
        path.write_bytes(b"again")
        progress.record("1.1", attempt)
        assert (path.parent / f"01_demo-{number}.progress.broken.json").read_bytes() == b"again"


def test_a_missing_folder_is_made_and_an_entry_that_is_none_is_begun_anew(tmp_path):
    progress = Progress(tmp_path / "not" / "yet" / "01_demo.progress.json")
    progress.record("1.1", attempt)
    assert (progress.take_notes(), progress.of("1.1")) == ((), {"attempts": 1})
    path = path_in(tmp_path)
    path.write_text('{"exercises": {"1.1": 7}}')
    assert Progress(path).of("1.1") == {}
    assert Progress(path).record("1.1", attempt) == {"attempts": 1}


def test_a_crash_or_a_full_disk_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = path_in(tmp_path)
    Progress(path).record("1.1", attempt)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            Progress(path).record("1.1", attempt)
    monkeypatch.setattr(os, "fsync", raising(OSError(28, "No space left on device")))
    progress = Progress(path)
    assert progress.record("1.1", attempt) == {"attempts": 2}
    assert "could not be saved in 01_demo.progress.json: No space left on device" in progress.take_notes()[0]
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
