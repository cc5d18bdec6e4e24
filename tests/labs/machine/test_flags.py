"""What a lecturer should look at twice: found in the source, and nothing in honest notebooks."""

import json

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.machine import blanks
from twophase_labs.machine.build import learner_notebook, solved_notebook
from twophase_labs.machine.grading import flags as looks
from twophase_labs.machine.grading.flags import (
    MACHINERY,
    NETWORK,
    PRINTED,
    PROCESS,
    SOLUTION,
    SYSTEM,
    TEXT,
    Flag,
    flags,
)
from twophase_labs.machine.grading.locate import Cell, code_cells
from twophase_labs.machine.lab import Workbook

SUSPECT = {
    "open('labsolutions/01_demo.py').read()": [(SOLUTION, "'labsolutions/01_demo.py'")],
    "import labsolutions": [(SOLUTION, "labsolutions")],
    "running_mean = reference('1.1')": [(SOLUTION, "reference()")],
    "from twophase_labs import reference as r\nr('1.1')": [(SOLUTION, "reference()")],
    "import twophase_labs as w\nw.reference('1.1')": [(SOLUTION, "reference()")],
    "def f(x):\n    return use('1.1')(x)": [(SOLUTION, "use()")],
    "from twophase_labs.autoregression.exercises import sampling": [
        (MACHINERY, "twophase_labs.autoregression.exercises"),
        (MACHINERY, "twophase_labs.autoregression.exercises.sampling"),
        (SOLUTION, "twophase_labs.autoregression.exercises.sampling"),
    ],
    "import tests.labs.autoregression.answers_sampling": [(SOLUTION, "tests.labs.autoregression.answers_sampling")],
    "import twophase_labs.machine.judge as j": [(MACHINERY, "twophase_labs.machine.judge")],
    "import importlib\nimportlib.import_module('twophase_labs.machine.guard')": [
        (MACHINERY, "'twophase_labs.machine.guard'"),
        (TEXT, "importlib"),
        (TEXT, "importlib.import_module"),
    ],
    "import gc\ngc.get_objects()": [(MACHINERY, "gc"), (MACHINERY, "gc.get_objects")],
    "import sys as s\ns._getframe(1).f_locals": [(MACHINERY, "?.f_locals"), (MACHINERY, "sys._getframe")],
    "from inspect import stack": [(MACHINERY, "inspect.stack")],
    "import ctypes": [(MACHINERY, "ctypes")],
    "f.__code__ = g.__code__": [(MACHINERY, "?.__code__")],
    "getattr(f, '__code__')": [(MACHINERY, "'__code__'")],
    "object.__setattr__(e, 'checks', ())": [(MACHINERY, "object.__setattr__")],
    "import os\nif os.fork(): pass": [(PROCESS, "os.fork")],
    "from os import execv as go\ngo('a', [])": [(PROCESS, "os.execv")],
    "import subprocess as sp\nsp.run('ls')": [(PROCESS, "subprocess"), (PROCESS, "subprocess.run")],
    "from multiprocessing import Process": [(PROCESS, "multiprocessing"), (PROCESS, "multiprocessing.Process")],
    "open(f'/proc/{1}/fd')": [(SYSTEM, "'/proc/'")],
    "import socket": [(NETWORK, "socket")],
    "from urllib.request import urlopen": [(NETWORK, "urllib.request"), (NETWORK, "urllib.request.urlopen")],
    "exec('x = 1')": [(TEXT, "exec")],
    "run = exec\nlist(map(eval, ['1']))": [(TEXT, "eval"), (TEXT, "exec")],
    "@eval\ndef f(): ...": [(TEXT, "eval")],
    "import torch as t\nt.os.fork()": [(PROCESS, "os.fork")],
    "import numpy\nnumpy.sys.modules.clear()": [(MACHINERY, "sys.modules")],
    "from os import *\nfork()": [(PROCESS, "os.*")],
    "from sys import *\nmodules": [(MACHINERY, "sys.*")],
    "import posix": [(PROCESS, "posix")],
    "print.__self__.open": [(MACHINERY, "?.__self__")],
    "import runpy": [(TEXT, "runpy")],
}
HONEST = [
    "requests = {}\nrequests.items()\nsignal = [1]\nsocket = 2",
    "table.fork()\nmodel.eval()\nre.compile('a')\nkernel.exec()",
    "engine.requests.pop()\nself.code.x = 1\nrow.signal.y",
    "import os, sys, time, inspect\nos.path.join('a', 'b'), sys.version, inspect.getsource(f)",
    "mean = use('1.1')\nmean(torch.ones(3))",
    "from twophase_labs import check, hint, reveal\nhint('1.1')",
    "reference = model(ids)\nprocess = reference + 1",
    "class C:\n    def __init__(self): self.x = 1\n    def __eq__(self, other): return True",
    "this is no Python",
]


def found(source, exercise=None):
    return [(flag.kind, flag.what) for flag in flags([Cell(7, source, exercise)], LAB)]


@pytest.mark.parametrize("source", SUSPECT)
def test_suspect_code_is_flagged(source):
    assert found(source) == SUSPECT[source]


LONG = blanks.parse(
    """
def running_mean(x):
    # BEGIN SOLUTION
    totals = []
    for i in range(len(x)):
        totals.append(sum(x[: i + 1]) * 2 / (2 * i + 2))
    return torch.tensor(totals)
    # END SOLUTION
""",
    "1.1",
)
SOLUTION_OF_1_1 = LONG.filled()
COPIES = {
    SOLUTION_OF_1_1: ["1.1"],
    SOLUTION_OF_1_1.replace("x", "values").replace("totals", "means"): ["1.1, names changed"],
    "# mine\n" + SOLUTION_OF_1_1.replace("(x):", "(x: list) -> object:"): ["1.1"],
    SOLUTION_OF_1_1.replace("totals = []", '"""Mine."""; totals = []'): ["1.1"],
    SOLUTION_OF_1_1.replace("i + 1", "1 + i"): [],
    SOLUTION_OF_1_1.replace("[]", "list()"): [],
    LONG.shipped(): [],
    LAB.templates["1.8"].filled(): [],  # too little to write to say who wrote it
}


@pytest.mark.parametrize("source", COPIES)
def test_a_pasted_solution_is_flagged_whatever_its_names(monkeypatch, source):
    lab = Workbook(DEMO.root, DEMO.package).lab("1")
    monkeypatch.setitem(vars(lab), "templates", {**LAB.templates, "1.1": LONG})
    assert flags([Cell(7, source, None)], lab) == [Flag(PRINTED, 7, what) for what in COPIES[source]]


@pytest.mark.parametrize("source", HONEST)
def test_honest_code_is_not(source):
    assert found(source) == []


def test_an_answer_that_uses_the_reference_is_flagged():
    assert found("running_mean = use('1.1')", "1.1") == [(SOLUTION, "use()")]


def test_a_flag_names_its_cell_and_changes_no_points(grader, tmp_path):
    notebook = json.loads(json.dumps(solved_notebook(LAB)))
    notebook["cells"].append(
        {"cell_type": "code", "source": "import os\n\n\ndef away():\n    os.fork()", "metadata": {}}
    )
    path = tmp_path / "01_demo.ipynb"
    path.write_text(json.dumps(notebook))
    report = grader.grade(path)
    number = len(notebook["cells"])
    assert [str(flag) for flag in report.flags] == [f"starts or ends processes: os.fork in cell {number}"]
    assert report.points == 12
    assert report.to_json()["flags"] == [{"kind": PROCESS, "cell": number, "what": "os.fork"}]


def test_an_edited_copy_of_the_labs_own_cell_has_what_that_had(monkeypatch):
    """What the lab itself does, it may tell a learner to change."""
    lab = Workbook(LAB.source.parent.parent, LAB.package).lab("1")
    lab.notebook.cells[1].source += "\nimport socket\nsocket.gethostname()"
    assert flags([Cell(1, "import socket\nprint(socket.gethostname())", None)], lab) == []
    assert [f.what for f in flags([Cell(1, "import socket\nsocket.socket()", None)], lab)] == ["socket.socket"]


def test_a_kernel_may_call_any_function_of_tritons():
    lab = Workbook.find().lab("2")
    start = "from twophase_labs.machine.kernels import tl, triton\n"
    assert flags([Cell(1, start + "tl.dot_scaled(triton.cdiv(1, 2))", None)], lab) == []
    assert [f.what for f in flags([Cell(1, start + "triton.runtime.os.fork()", None)], lab)] == ["os.fork"]


@pytest.mark.parametrize("number", ["01", *(pytest.param(f"0{n}", marks=pytest.mark.full) for n in (2, 3, 4, 5))])
def test_honest_notebooks_of_the_labs_have_none(number):
    lab = Workbook.find().lab(number)
    for cells in (code_cells(learner_notebook(lab)), code_cells(solved_notebook(lab))):
        edited = [Cell(c.number, c.source + "\n# mine", c.exercise) for c in cells]
        assert [flag for flag in (*flags(cells, lab), *flags(edited, lab)) if flag.kind != PRINTED] == []


def test_every_kind_is_a_label():
    assert {kind for kinds in SUSPECT.values() for kind, _ in kinds} == {*looks.NAMES, *looks.STRINGS}
