"""A learner's kernel that reads or writes outside of its tensors, never ends, or that Triton refuses: in a notebook the
cell ends with an error that names the line and the usual cause, and what the notebook has computed is still there."""

import os
import sys

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from twophase_kernels import choice

pytest.importorskip("triton", reason="not run here: no triton")
if torch.cuda.is_available() or not choice.has_compiler():
    pytest.skip("not run here: about kernels compiled for a CPU", allow_module_level=True)

SETUP = """
import torch
from twophase_labs.machine import kernels
from twophase_labs.machine.kernels import tl, triton

kernels.LAUNCH_LIMIT_S = 0.5
kept = torch.arange(12.0).view(3, 4)
"""
COPY = """
{jit}
def copy_kernel(x_ptr, out_ptr, row_stride, N: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + {read})
    {extra}
    tl.store(out_ptr + {write}, x)

out = torch.zeros(3, 4)
copy_kernel{grid}(kept, out, {stride}, N=4)
"""
PLACE = "row * row_stride + columns"
RIGHT = {"jit": "@triton.jit", "grid": "[(3,)]", "read": PLACE, "write": PLACE, "extra": "", "stride": "4"}
FAULTS = {
    "read": ({"read": f"{PLACE} + 1"}, ["program (2, 0, 0) reads x_ptr + 12", "line 4: x = tl.load(x_ptr"]),
    "write": ({"write": f"{PLACE} - 1"}, ["program (0, 0, 0) writes out_ptr + -1", "line 6: tl.store(out_ptr"]),
    "far": ({"read": f"{PLACE} + 123456789012"}, ["program (0, 0, 0) reads", "far outside"]),
    "stride": ({"stride": "5"}, ["program (2, 0, 0) reads x_ptr + 12", "shape [3, 4] and strides [4, 1]"]),
}
ONLY_COMPILED = {
    "endless": (
        {"extra": "while row >= 0:\n        x += 1"},
        ["was still running after 0.5 s and was stopped in the loop of line"],
    ),
    "break": ({"extra": "while True:\n        break"}, ["line 6 of the cell: break", "no break or continue"]),
    "division": ({"read": "row * row_stride / 2 + columns"}, ["line 4 of the cell", "// divides integers"]),
    "name": ({"extra": "x += y"}, ["line 5 of the cell: x += y", "y is not defined"]),
    "index": ({"extra": "x += x_ptr[row]"}, ["line 5 of the cell: x += x_ptr[row]", "A pointer has no index"]),
    "size": (
        {"extra": "x += tl.zeros([3], tl.float32)"},
        ["line 5 of the cell", "The sides of a tile are powers of two"],
    ),
    "dot": (
        {"extra": "tl.dot(tl.zeros([16, 32], tl.float32), tl.zeros([16, 32], tl.float32))"},
        ["line 5 of the cell", "as many columns as b has rows"],
    ),
    "no jit": ({"jit": ""}, ["not subscriptable", "@triton.jit is missing"]),
    "no grid": ({"grid": ""}, ["the grid is missing"]),
    "no comma": ({"grid": "[(3)]"}, ["with a comma"]),
}


@pytest.mark.parametrize(
    ("mode", "cases"),
    [("cpu", FAULTS | ONLY_COMPILED), ("interpreted", FAULTS)],
    ids=["compiled", "interpreted"],
)
def test_the_notebook_goes_on(mode, cases, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TWOPHASE_KERNELS", mode)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    wrong = [COPY.format(**RIGHT | changes).strip("\n") for changes, _ in cases.values()]
    last = COPY.format(**RIGHT) + "print(torch.equal(kept, out), kept.sum().item())"
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, *wrong, last)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    for _ in range(2):  # in the second process kernels come from the cache
        NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True).execute()
    for (name, (_, expected)), cell in zip(cases.items(), cells[1:-1], strict=True):
        assert cell.outputs, name
        assert cell.outputs[-1].output_type == "error", name
        for words in expected:
            assert words in cell.outputs[-1].evalue, (name, cell.outputs[-1].evalue)
        assert "site-packages" not in "".join(cell.outputs[-1].traceback), f"{name}: frames that are not the learner's"
    assert cells[-1].outputs[-1].text == "True 66.0\n"


def test_a_trusted_kernel_is_launched_without_checks(monkeypatch):
    from twophase_labs.machine import kernels
    from twophase_labs.machine.judge import run_cell

    if kernels.mode() != "cpu":
        pytest.skip("not run here: kernels are not compiled for the CPU in this process")
    checked, checks = [], kernels._checks
    monkeypatch.setattr(kernels, "_checks", lambda *launch: (checked.append(launch[0]), checks(*launch))[1])
    namespace = {"torch": torch, "tl": kernels.tl, "triton": kernels.triton, "kept": torch.arange(12.0).view(3, 4)}
    run_cell(COPY.format(**RIGHT), namespace, "<exercise 9.9>")
    with kernels.trusted():
        namespace["copy_kernel"][(3,)](namespace["kept"], namespace["out"].zero_(), 4, N=4)
    assert len(checked) == 1
    assert torch.equal(namespace["out"], namespace["kept"])
