"""An autograder for Gradescope: unpacked and run as that service does, with another folder for /autograder."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.labs.demo import LAB
from tests.labs.machine.test_tables import CORE_POINTS, EXERCISES, report
from twophase_labs.commands import grade
from twophase_labs.machine.build import learner_notebook, solved_notebook, to_text
from twophase_labs.machine.grading.folder import Submission
from twophase_labs.machine.grading.gradescope import results
from twophase_labs.machine.lab import Workbook

NUMBER, SMALL = "04", ("4.1", "4.2")


def test_the_best_notebook_counts_and_extra_points_stand_beside_it():
    found = [report(), report(_1_1="passed", _1_2="passed"), report()]
    made = results([Submission("ann", Path("a"), one) for one in found], LAB, frozenset())
    assert made["score"] == EXERCISES["1.1"].points
    first, second = made["tests"][:2]
    assert (first["number"], first["status"], first["score"], first["max_score"]) == ("1.1", "passed", 3, 3)
    assert (second["name"], second["score"]) == ("Cost of one more (extra): passed", 1)
    assert {test["status"] for test in made["tests"][2:]} == {"failed"}


def test_without_a_notebook_it_says_why():
    made = results([], LAB, frozenset())
    assert (made["score"], made["output"]) == (0, "no notebook was handed in; 01_demo.ipynb is asked for")
    wrong = Submission("ann", Path("a.pdf"), None, "a.pdf is a PDF")
    assert results([wrong], LAB, frozenset({"1.1"}))["output"] == "a.pdf is a PDF"
    other = Submission("ann", Path("b.ipynb"), replace(report(), lab="02_next"))
    assert results([other], LAB, frozenset())["output"] == "b.ipynb is no notebook of lab 01"
    assert made["tests"][0]["max_score"] == sum(e.points for e in LAB.core) >= CORE_POINTS


@pytest.mark.parametrize(
    "args", [[], ["--lab", "99"], ["--lab", "04", "--only", "1.1"], ["--lab", "04", "--minutes", "1"]]
)
def test_what_makes_no_autograder(tmp_path, capsys, args):
    assert grade.main(["--gradescope", str(tmp_path / "o.zip"), *args]) == 2
    assert "twophase grade: " in capsys.readouterr().err
    assert not (tmp_path / "o.zip").exists()


class Service:
    """What Gradescope does, after https://gradescope-autograders.readthedocs.io/en/latest/specs/."""

    def __init__(self, zipped, root):
        self.root = root
        with ZipFile(zipped) as archive:
            archive.extractall(root / "source")
        shutil.copy(root / "source" / "run_autograder", root / "run_autograder")
        (root / "run_autograder").chmod(0o755)
        (root / "results").mkdir()
        (root / "venv").symlink_to(sys.prefix)  # in place of setup.sh, which installs one

    def grade(self, notebook):
        shutil.rmtree(self.root / "submission", ignore_errors=True)
        (self.root / "submission").mkdir()
        (self.root / "submission" / "my work.ipynb").write_text(notebook)
        # Nothing of this process's own paths: the zip has to bring all.
        own = ("PYTHONPATH", "VIRTUAL_ENV", "TWOPHASE")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
        ran = subprocess.run(
            [self.root / "run_autograder"], cwd=self.root, capture_output=True, text=True, check=False,
            env=environment | {"AUTOGRADER_ROOT": str(self.root)},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        return json.loads((self.root / "results" / "results.json").read_text())


def packed(folder, *args):
    assert grade.main(["--gradescope", str(folder / "lab.zip"), "--lab", NUMBER, *args]) == 0
    return Service(folder / "lab.zip", folder / "autograder")


def test_it_runs_as_the_service_runs_it(tmp_path):
    lab = Workbook.find().lab(NUMBER)
    service = packed(tmp_path, "--only", ",".join(SMALL))
    solved = service.grade(to_text(solved_notebook(lab)))
    assert [test["number"] for test in solved["tests"]] == list(SMALL)
    assert {test["status"] for test in solved["tests"]} == {"passed"}
    assert solved["score"] == sum(lab.exercise(i).points for i in SMALL)
    assert solved["output"].startswith("isolation: ")
    shipped = service.grade(to_text(learner_notebook(lab)))
    assert (shipped["score"], shipped["tests"][0]["output"]) == (0, "not attempted")


@pytest.mark.full
def test_loops_without_end_stay_within_the_services_limit(tmp_path):
    lab = Workbook.find().lab(NUMBER)
    notebook = solved_notebook(lab)
    for cell in notebook.cells:
        cell.source = "while True: pass\n" + cell.source if "exercise:" in str(cell.metadata) else cell.source
    begun = time.monotonic()
    made = packed(tmp_path, "--minutes", "3").grade(to_text(notebook))
    assert time.monotonic() - begun < 180
    assert made["score"] == 0
    assert sum("its share of the time" in test["output"] for test in made["tests"]) > 5
