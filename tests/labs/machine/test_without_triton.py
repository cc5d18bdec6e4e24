"""Where triton is not installed labs run to their end, and the cells that need it say 'not run here'. Where there is no
C compiler kernels are interpreted, in notebooks and while grading, and the notebook says so."""

import importlib.util
import os
import sys

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from twophase_labs.machine import kernels
from twophase_labs.machine.grading.grade import Grader
from twophase_labs.machine.grading.lane import Job
from twophase_labs.machine.kernels import NEEDS_TRITON, KernelsUnavailableError
from twophase_labs.machine.lab import Workbook

WORKBOOK = Workbook.find()
LABS = WORKBOOK.root / "labs"


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


def run_notebook(notebook):
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(LABS)}}).execute()


@pytest.mark.full
@pytest.mark.parametrize("name", ["02_prefill", "03_decode"])
def test_a_shipped_lab_runs_to_its_end(name, tmp_path, monkeypatch):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('a machine without triton')\n")
    paths = [str(tmp_path), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("TWOPHASE_PROGRESS_DIR", str(tmp_path))
    notebook = nbformat.read(LABS / f"{name}.ipynb", as_version=4)
    run_notebook(notebook)
    skipped = [c for c in notebook.cells if NEEDS_TRITON in c.source]
    assert skipped
    for cell in skipped:
        assert "not run here: Triton is not installed" in cell.outputs[0].text


KERNEL_CELLS = (
    """
import torch
from twophase_labs.machine.kernels import how_kernels_run, tl, triton
print(how_kernels_run())
""",
    """
@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    print(tl.program_id(0))
    tl.store(out_ptr + offs, 2 * x, mask=offs < n)
""",
    """
x, out = torch.arange(30.0), torch.zeros(30)
double_kernel[(2,)](x, out, 30, BLOCK=16)
assert torch.equal(out, 2 * x)
""",
)


def check_prints_of_kernels(cells, why):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    run_notebook(notebook)
    first, _, last = notebook.cells[-len(KERNEL_CELLS) :]
    assert f"interpreted, {why}" in first.outputs[0].text
    assert [line for line in last.outputs[0].text.splitlines() if line.strip()] == ["[0]", "[1]"]


def test_a_learner_chooses_the_interpreter(monkeypatch):
    """As lab 2 says: in the notebook's first cell."""
    pytest.importorskip("triton", reason="not run here: no triton")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    choice = "%env TWOPHASE_KERNELS=interpreted"
    assert choice in (WORKBOOK.root / "labsolutions" / "02_prefill.py").read_text()
    check_prints_of_kernels((choice, *KERNEL_CELLS), "because TWOPHASE_KERNELS=interpreted")


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="not run here: no triton")
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is not None, reason="ziglang is a compiler")
class TestWithoutACompiler:
    @pytest.fixture(autouse=True)
    def hide_compilers(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        for name in ("CC", "TRITON_INTERPRET", "TWOPHASE_KERNELS"):
            monkeypatch.delenv(name, raising=False)

    def test_a_notebook_interprets_and_says_so(self):
        check_prints_of_kernels(KERNEL_CELLS, "because there is neither a GPU nor a C compiler")

    def test_the_grader_judges_kernels(self):
        lab = WORKBOOK.lab("06")
        template = lab.templates["6.7"]
        sources = template.filled(), template.filled().replace("& 15", "& 7")
        with Grader(WORKBOOK, num_workers=1) as grader:
            verdicts = grader.run_all(lab, [Job("6.7", source, seed=0) for source in sources])
        assert [(verdict.verdict, verdict.failed_property) for verdict in verdicts] == [
            ("passed", ""),
            ("failed", "finds each code"),
        ]
