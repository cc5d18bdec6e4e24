"""Where triton is not installed labs run to their end, and the cells that need it say 'not run here'. Where there is no
C compiler kernels are interpreted, in notebooks and while grading, and the notebook says so."""

import importlib.util
import os
import sys
from unittest.mock import Mock

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


def test_a_marked_cell_says_why_it_is_not_run(monkeypatch, capsys):
    assert kernels._skip_unless_runnable(CELL) is CELL
    monkeypatch.setattr(
        kernels, "mode", Mock(side_effect=KernelsUnavailableError('Triton isn\'t installed; "Linux" only.'))
    )
    (line,) = kernels._skip_unless_runnable(CELL)
    exec(line)
    assert capsys.readouterr().out == 'not run here: Triton isn\'t installed; "Linux" only.\n'
    for cell in (["x = 1\n", f"{NEEDS_TRITON}\n"], [f"print('{NEEDS_TRITON}')\n"], []):
        assert kernels._skip_unless_runnable(cell) is cell, "only a comment at the top marks a cell"


def run_notebook(notebook):
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(LABS)}}).execute()


@pytest.mark.full
@pytest.mark.parametrize("name", ["02_prefill", "03_decode"])
def test_a_shipped_lab_runs_to_its_end(name, tmp_path, monkeypatch):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('a machine without triton')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("TWOPHASE_PROGRESS_DIR", str(tmp_path))
    notebook = nbformat.read(LABS / f"{name}.ipynb", as_version=4)
    run_notebook(notebook)
    said = [cell.outputs[0].text for cell in notebook.cells if NEEDS_TRITON in cell.source]
    assert said
    assert all("not run here: Triton is not installed" in text for text in said)


KERNEL_CELLS = (
    "import torch\nfrom twophase_labs.machine.kernels import how_kernels_run, tl, triton\nprint(how_kernels_run())",
    """
@triton.jit
def double_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    print(tl.program_id(0))
    tl.store(out_ptr + offs, 2 * x, mask=offs < n)

x, out = torch.arange(30.0), torch.zeros(30)
double_kernel[(2,)](x, out, 30, BLOCK=16)
assert torch.equal(out, 2 * x)
""",
)
CHOICE = "%env TWOPHASE_KERNELS=interpreted"  # as lab 2 says: in the notebook's first cell
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="not run here: about machines without a GPU")


@pytest.fixture
def without_a_compiler(monkeypatch, tmp_path):
    if importlib.util.find_spec("ziglang") is not None:
        pytest.skip("not run here: ziglang is a compiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


@pytest.fixture(autouse=True)
def kernels_by_default(monkeypatch):
    pytest.importorskip("triton", reason="not run here: no triton")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    for name in ("TRITON_INTERPRET", "TWOPHASE_KERNELS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ((CHOICE, *KERNEL_CELLS), "because TWOPHASE_KERNELS=interpreted"),
        pytest.param(KERNEL_CELLS, "because there is neither a GPU nor a C compiler", marks=no_gpu),
    ],
    ids=["chosen", "no compiler"],
)
def test_interpreted_kernels_print_and_the_notebook_says_why(cells, why, request):
    assert CHOICE in (WORKBOOK.root / "labsolutions" / "02_prefill.py").read_text()
    if CHOICE not in cells:
        request.getfixturevalue("without_a_compiler")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    run_notebook(notebook)
    first, last = notebook.cells[-len(KERNEL_CELLS) :]
    assert f"interpreted, {why}" in first.outputs[0].text
    assert [line for line in last.outputs[0].text.splitlines() if line.strip()] == ["[0]", "[1]"]


@no_gpu
def test_without_a_compiler_the_grader_judges_kernels(without_a_compiler):
    lab = WORKBOOK.lab("06")
    solved = lab.templates["6.7"].filled()
    with Grader(WORKBOOK, num_workers=1) as grader:
        verdicts = grader.run_all(
            lab, [Job("6.7", source, seed=0) for source in (solved, solved.replace("& 15", "& 7"))]
        )
    assert [verdict.verdict for verdict in verdicts] == ["passed", "failed"]
    assert verdicts[1].failed_property == "finds each code"
