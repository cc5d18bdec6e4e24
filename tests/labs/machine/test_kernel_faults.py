"""A learner's kernel that reads or writes outside of its tensors, or never ends: in a notebook the cell ends with an
error that names the line, the program, the tensor and the index, and what the notebook has computed is still there."""

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
@triton.jit
def copy_kernel(x_ptr, out_ptr, row_stride, N: tl.constexpr):
    row, columns = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + {read})
    {extra}
    tl.store(out_ptr + {write}, x)

out = torch.zeros(3, 4)
copy_kernel[(3,)](kept, out, {stride}, N=4)
"""
RIGHT = {"read": "row * row_stride + columns", "write": "row * row_stride + columns", "extra": "", "stride": "4"}
FAULTS = {
    "read": ({"read": "row * row_stride + columns + 1"}, ["program (2, 0, 0) reads x_ptr + 12", "x = tl.load(x_ptr"]),
    "write": (
        {"write": "row * row_stride - 1 + columns"},
        ["program (0, 0, 0) writes out_ptr + -1", "tl.store(out_ptr"],
    ),
    "stride": ({"stride": "5"}, ["program (2, 0, 0) reads x_ptr + 12", "shape [3, 4] and strides [4, 1]"]),
    "endless": ({"extra": "while row >= 0:\n        x += 1"}, ["was still running after 0.5 s and was stopped"]),
}


def test_the_notebook_goes_on(monkeypatch):
    for name in ("TRITON_INTERPRET", "TWOPHASE_KERNELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    faults = [COPY.format(**RIGHT | changes) for changes, _ in FAULTS.values()]
    last = COPY.format(**RIGHT) + "print(torch.equal(kept, out), kept.sum().item())"
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, *faults, last)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True).execute()
    for (fault, (_, expected)), cell in zip(FAULTS.items(), cells[1:-1], strict=True):
        assert cell.outputs[-1].output_type == "error", fault
        for words in expected:
            assert words in cell.outputs[-1].evalue, fault
    assert cells[-1].outputs[-1].text == "True 66.0\n"
