"""What tests/conftest.py promises: marks are marks, and a worker that crashed does not take the run with it."""

from types import SimpleNamespace

import pytest

from tests import conftest
from tests.mutation import KillTable


def test_a_folder_with_a_marks_name_is_no_mark(request):
    """A test's keywords hold the names of its folders: a checkout called 'gpu' once skipped every test."""
    request.node.keywords["full"] = True
    assert not conftest.is_marked(request.node, "full")
    request.node.add_marker(pytest.mark.full)
    assert conftest.is_marked(request.node, "full")


def test_a_worker_that_crashed_has_no_kill_table(monkeypatch):
    monkeypatch.setattr(KillTable, "rows", [])
    conftest.pytest_testnodedown(SimpleNamespace(), "Not properly terminated")
    assert KillTable.rows == []
    conftest.pytest_testnodedown(SimpleNamespace(workeroutput={"kill_table": '[["m", "n", "how"]]'}), None)
    assert KillTable.rows == [("m", "n", "how")]
