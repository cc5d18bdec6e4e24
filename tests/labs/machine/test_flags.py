"""What a lecturer should look at twice: found in the source, and nothing in honest notebooks."""

import json

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.machine import blanks
from twophase_labs.machine.build import learner_notebook, solved_notebook
from twophase_labs.machine.grading.flags import MACHINERY, NETWORK, PRINTED, PROCESS, SOLUTION, TEXT, Flag, flags
from twophase_labs.machine.grading.locate import Cell, code_cells
from twophase_labs.machine.lab import Lab, Workbook

SUSPECT = {
    "open('labsolutions/01_demo.py').read()": (SOLUTION, "labsolutions"),
    "from tests.labs.demo import x": (SOLUTION, "from tests.labs.demo import x"),
    "x = answers_sampling": (SOLUTION, "answers_sampling"),
    "import twophase_labs.machine.judge as j": (MACHINERY, "import twophase_labs.machine.judge as j"),
    "sys._getframe(1)": (MACHINERY, "sys._getframe"),
    "getattr(f, '__code__')": (MACHINERY, "__code__"),
    "object.__setattr__(e, 'checks', ())": (MACHINERY, "object.__setattr__"),
    "import subprocess as sp": (PROCESS, "import subprocess as sp"),
    "open(f'/proc/{1}/fd')": (PROCESS, "/proc"),
    "from os import *": (PROCESS, "from os import *"),
    "import socket": (NETWORK, "import socket"),
    "exec('x = 1')": (TEXT, "exec("),
}
HONEST = [
    "requests = {}\nrequests.items()\nsignal = [1]\nsocket = 2",
    "table.fork()\nmodel.eval()\nre.compile('a')\nkernel.exec()",
    "engine.requests.pop()\nself.code.x = 1\nrow.signal.y\nsubprocess = 1",
    "import os, sys, time, inspect\nos.path.join('a', 'b'), sys.version, inspect.getsource(f)",
    "mean = use('1.1')\nmean(torch.ones(3))",
    "from twophase_labs import check, hint, reveal\nhint('1.1')",
    "class C:\n    def __init__(self): self.x = 1\n    def __eq__(self, other): return True",
    "this is no Python",
]


@pytest.mark.parametrize("source", [*SUSPECT, *HONEST])
def test_suspect_code_is_flagged_and_honest_code_is_not(source):
    found = [(flag.kind, flag.what) for flag in flags([Cell(7, source, None)], LAB)]
    assert found == ([SUSPECT[source]] if source in SUSPECT else [])


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
def test_a_pasted_solution_is_flagged_whatever_its_names(source):
    lab = Lab(LAB.source, DEMO.package)
    vars(lab)["templates"] = {**LAB.templates, "1.1": LONG}
    assert flags([Cell(7, source, None)], lab) == [Flag(PRINTED, 7, what) for what in COPIES[source]]


def test_a_flag_names_its_cell_and_changes_no_points(grader, tmp_path):
    notebook = json.loads(json.dumps(solved_notebook(LAB)))
    notebook["cells"].append({"cell_type": "code", "source": "import os\n\nos.fork", "metadata": {}})
    (tmp_path / "01_demo.ipynb").write_text(json.dumps(notebook))
    report = grader.grade(tmp_path / "01_demo.ipynb")
    number = len(notebook["cells"])
    assert [str(flag) for flag in report.flags] == [f"starts or ends processes: os.fork in cell {number}"]
    assert report.points == 12
    assert report.to_json()["flags"] == [{"kind": PROCESS, "cell": number, "what": "os.fork"}]


def test_an_edited_copy_of_the_labs_own_cell_has_what_that_had():
    """What the lab itself does, it may tell a learner to change."""
    lab = Lab(LAB.source, DEMO.package)
    lab.notebook.cells[1].source += "\nimport socket"
    assert flags([Cell(1, "import socket\nsocket.gethostname()", None)], lab) == []
    assert [f.what for f in flags([Cell(1, "import socket\nimport httpx", None)], lab)] == ["import httpx"]


@pytest.mark.parametrize("number", ["01", *(pytest.param(f"0{n}", marks=pytest.mark.full) for n in (2, 3, 4, 5))])
def test_honest_notebooks_of_the_labs_have_none(number):
    lab = Workbook.find().lab(number)
    rights = [(i, a.source(lab.templates[i])) for i, bank in lab.banks.items() for a in bank if a.rejected_by is None]
    answers = [Cell(n, source, i) for n, (i, source) in enumerate(rights)]
    for cells in (code_cells(learner_notebook(lab)), code_cells(solved_notebook(lab)), answers):
        edited = [Cell(c.number, c.source + "\n# mine", c.exercise) for c in cells]
        assert [flag for flag in (*flags(cells, lab), *flags(edited, lab)) if flag.kind != PRINTED] == []
