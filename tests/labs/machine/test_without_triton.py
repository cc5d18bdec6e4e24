"""Where triton is not installed labs run to their end, and the cells that need it say 'not run here'."""

import os
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from twophase_labs.machine import kernels
from twophase_labs.machine.kernels import NEEDS_TRITON, KernelsUnavailableError
from twophase_labs.machine.lab import Workbook

LABS = Workbook.find().root / "labs"


CELL = ["# NBVAL_CHECK_OUTPUT\n", f"{NEEDS_TRITON}\n", "kernel[(1,)](x)\n"]


class TestMarkedCells:
    def without(self, monkeypatch):
        def refuse():
            raise KernelsUnavailableError('Triton isn\'t installed; "Linux" only.')

        monkeypatch.setattr(kernels, "mode", refuse)

    def test_it_is_left_alone_where_kernels_run(self):
        assert kernels._skip_unless_runnable(CELL) is CELL

    def test_elsewhere_it_says_why_it_is_not_run(self, monkeypatch, capsys):
        self.without(monkeypatch)
        (line,) = kernels._skip_unless_runnable(CELL)
        exec(line)
        assert capsys.readouterr().out == 'not run here: Triton isn\'t installed; "Linux" only.\n'

    def test_only_a_comment_at_the_top_marks_a_cell(self, monkeypatch):
        self.without(monkeypatch)
        for cell in (["x = 1\n", f"{NEEDS_TRITON}\n"], [f"print('{NEEDS_TRITON}')\n"], []):
            assert kernels._skip_unless_runnable(cell) is cell


@pytest.mark.full
@pytest.mark.parametrize("name", ["02_prefill", "03_decode"])
def test_a_shipped_lab_runs_to_its_end(name, tmp_path, monkeypatch):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('a machine without triton')\n")
    paths = [str(tmp_path), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("TWOPHASE_PROGRESS_DIR", str(tmp_path))
    notebook = nbformat.read(LABS / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(LABS)}}).execute()
    skipped = [c for c in notebook.cells if NEEDS_TRITON in c.source]
    assert skipped
    for cell in skipped:
        assert "not run here: Triton is not installed" in cell.outputs[0].text
