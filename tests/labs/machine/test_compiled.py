"""A kernel that passed here, once more as a GPU's compiled code: accepted, refused, or not run here."""

import linecache
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ptx_emulator import NotCoveredError
from tests.labs.demo import LAB
from tests.labs.machine.test_session import notebook, solved
from twophase_labs.kit.microscope import draw_requests, show_beside, show_compiled, tile_loads
from twophase_labs.machine import compiled as compiled_module
from twophase_labs.machine.checks import compare
from twophase_labs.machine.compiled import Compiled, judge_compiled
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.kernels import tl, triton

PASSED = Verdict("9.1", "passed", "every property holds", held=("adds one",), notes=("a note",))
CELL = """
@triton.jit
def add_one(x_ptr, y_ptr, length, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < length)
    tl.store(y_ptr + offs, x + 1, mask=offs < length)
"""
ORDER = ("offs = tl.arange(0, BLOCK)", "offs = tl.arange(0, BLOCK) % 8 * (BLOCK // 8) + tl.arange(0, BLOCK) // 8")


def adds_one(answer, draw, length=100):
    x = draw.normal(length)
    y = torch.zeros(length)
    answer.add_one[(1,)](x, y, length, BLOCK=128)
    compare(y, x + 1, what="the result")


CHECKS = (Property("adds one", adds_one, "Add one."),)
EXERCISE = Exercise("9.1", "Add one", "kernel", ("add_one",), 1, 1, checks=CHECKS, compiled=adds_one)


def kernel(old="", new=""):
    """The cell's kernel, with an edit."""
    text = CELL.replace(old, new) if old else CELL
    file = f"<cell {len(text)} {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace = {"triton": triton, "tl": tl, "__name__": "__main__", "SHIFT": torch.ones(1)}
    exec(compile(text, file, "exec"), namespace)
    return namespace["add_one"]


def judged(old="", new=""):
    return judge_compiled(EXERCISE, {"add_one": kernel(old, new)}, PASSED)


RUN = "run here, the kernel is right; compiled for an H100 and executed without one, it"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("x + 1", "x + 2", f"{RUN}.*the result differs first at index \\[0\\]"),
        ("x_ptr + offs, mask=offs < length", "x_ptr + offs", "read of.*x_ptr, which has 400"),
        ("x + 1", "x + tl.arange(0, 3)", "^the compiler for an H100 refuses it: "),
        ("x + 1", "x + SHIFT", "^it cannot be compiled: add_one uses SHIFT, a Tensor; kernels use numbers only"),
    ],
)
def test_a_kernel_that_is_wrong_as_a_gpus_code(old, new, reason):
    found = judged(old, new)
    assert (found.verdict, found.failed_property) == ("failed", "a GPU's code")
    assert re.search(reason, found.reason, re.DOTALL), found.reason
    if "offs" in new:
        assert found.details == ("line 5 of the cell: x = tl.load(x_ptr + offs)",)


def test_an_uncoalesced_kernel_is_accepted_and_counted(capsys):
    accesses, reports = {}, {}
    for name, edit in (("side by side", ()), ("strided", ORDER)):
        assert judged(*edit).notes == (
            "a note",
            "a GPU's code: right as well, compiled for an H100 and executed without one",
        )
        under = Compiled(kernel(*edit))
        adds_one(SimpleNamespace(add_one=under), compiled_module.Draw(1), length=128)
        reports[name] = under.report
        accesses[name] = tile_loads(reports[name])[0]
        show_compiled(under, keys_per_turn=128)
    assert [a.efficiency for a in accesses.values()] == [1, 1 / 2]
    printed = capsys.readouterr().out
    assert {
        words in printed for words in ("x = tl.load(x_ptr + offs, ma ...", "H100", "no loop with matrix products")
    } == {True}
    show_beside(reports)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["side", "by", "side", "strided"]
    assert [line.split()[-2:] for line in lines if "request" in line] == [["4.0", "8.0"]]
    panels = draw_requests(accesses).axes
    assert [panel.get_title(loc="left").partition(":")[0] for panel in panels if panel.patches] == list(accesses)


def test_what_is_not_run_says_why_and_how_it_would_be(monkeypatch):
    def rounds(answer, draw):
        raise NotCoveredError("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")

    found = judge_compiled(replace(EXERCISE, compiled=rounds), {"add_one": kernel()}, PASSED)
    assert found.passed
    assert 'with `input_precision="ieee"` in `tl.dot`' in found.notes[1]
    monkeypatch.setattr(compiled_module, "IMPORT_ERROR", ImportError("No module named 'triton'"))
    found = judged("x + 1", "x + 2")
    assert found.passed
    assert found.notes[1] == "not run here: a GPU's code (Triton is not installed: No module named 'triton')"


def test_check_runs_it_when_all_properties_hold(notebook, monkeypatch):
    """Its verdict is the card's, the file's, and what `use` goes by."""
    asked = []

    def refuse(answer, draw):
        asked.append(answer.running_mean.kernel)
        compare(1, 2, what="the result")

    monkeypatch.setitem(LAB.exercises, "1.1", replace(LAB.exercise("1.1"), kind="kernel", compiled=refuse))
    notebook.run(solved("1.1", {2: "0, x.shape[-1]"}))
    assert re.search(r"fails +matches a loop", repr(notebook.ask('check("1.1")')))
    assert asked == []
    notebook.run(solved("1.1"))
    card = repr(notebook.ask('check("1.1")'))
    assert re.search(r"fails +a GPU's code", card)
    assert "it is not: the result is 1, expected 2" in card
    assert asked == [notebook.namespace["running_mean"]]
    assert notebook.file()["1.1"]["verdict"] == "failed"
    notebook.ask('use("1.1")')
    assert len(asked) == 1
