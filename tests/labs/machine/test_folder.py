"""A folder of submissions, one of them malformed or hostile: it costs its own grade at most."""

import csv
import io
import json
import os
import re
import zipfile
from pathlib import Path

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.commands import grade as cli
from twophase_labs.machine.build import learner_notebook, solved_notebook, to_text
from twophase_labs.machine.grading import handed_in
from twophase_labs.machine.grading.lane import Lane
from twophase_labs.machine.grading.locate import code_cells
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.notebooks import jupytext, nbformat


def notebook(*extra, metadata=None, **answers):
    """One answer, worth a point, and what a case adds: further code cells, other answers by `e1_8`, metadata."""
    made = json.loads(to_text(learner_notebook(LAB)))
    given = {"1.6": "answer_1_6 = 128"} | {i[1:].replace("_", "."): source for i, source in answers.items()}
    for cell in made["cells"]:
        for tag in cell["metadata"].get("tags", []):
            cell["source"] = given.get(tag.removeprefix("exercise:"), cell["source"])
    made["cells"] += [{"cell_type": "code", "metadata": {}, "source": source} for source in extra]
    made["metadata"] |= metadata or {}
    return json.dumps(made)


GOOD = notebook()
COUNTER = LAB.templates["1.8"].filled()


def counter(body):
    return f"class Counter:\n    def __init__(self, start):\n        self.value = start\n\n    def step(self):\n        {body}\n"


def text(content=GOOD, name="01_demo.ipynb"):
    def make(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make


def too_deep(folder):
    """A path longer than the system takes, made step by step."""
    here = os.getcwd()
    os.chdir(folder)
    for _ in range(85):
        os.mkdir("d" * 50)
        os.chdir("d" * 50)
    Path("01_demo.ipynb").write_text(GOOD)
    os.chdir(here)


def undecodable(folder):
    Path(os.fsdecode(bytes(folder) + b"/01_demo\xff.ipynb")).write_text(GOOD)


# What makes the submission; its points, or what its row's error says.
CASES = {
    "a named pipe": (lambda folder: os.mkfifo(folder / "01_demo.ipynb"), "is a pipe or a device"),
    "a link to a device": (lambda folder: (folder / "01_demo.ipynb").symlink_to("/dev/zero"), "is a pipe or a device"),
    "markup in its name": (text(name="x[/bold].ipynb"), 1),
    "escapes in its name": (text(name="01_demo\x1b[2J\x1b]0;x\x07\u202e.ipynb"), 1),
    "a path too long": (too_deep, f"{50 * 'd'}/{50 * 'd'}"),
    "a name that is not text": (undecodable, 1),
    "a lab with 5,000 digits": (text(notebook(metadata={"twophase": {"lab": "1" * 5000}})), 1),
    "400 terms": (text(notebook(f"def total(a):\n    return {' + '.join(['a'] * 400)}\n", e1_8=COUNTER)), 3),
    "a lone surrogate": (text(notebook("x = '\udcff'", e1_8="class Counter:\n    '\udcff'\n")), 1),
    "raises a lone surrogate": (text(notebook(e1_8=counter("raise ValueError(chr(0xDCFF))"))), 1),
    "raises escapes": (text(notebook(e1_8=counter("raise ValueError('\\x1b[2J\\x9b[/bold]\\u202e<script>')"))), 1),
    "raises what cannot be shown": (
        text(notebook("class Silent(Exception):\n    def __str__(self): raise self\n", e1_8=counter("raise Silent"))), 1,
    ),
}  # fmt: skip


def solved(change=lambda cells: None, **top):
    """All answered; the cells changed in place, and what stands at the top of the file."""
    made = json.loads(to_text(solved_notebook(LAB)))
    change(made["cells"])
    return json.dumps(made | top)


def each(source):
    """A change of each code cell's source."""
    return lambda cells: [c.update(source=source("".join(c["source"]))) for c in cells if c["cell_type"] == "code"]


def files_of(contents):
    return lambda folder: [text(content, name)(folder) for name, content in contents.items()]


def zipped(contents, compression=zipfile.ZIP_DEFLATED):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return made.getvalue()


def at_top(content, name=""):
    """A file beside the folders of others."""

    def make(folder):
        folder.rmdir()
        text(content, name or f"{folder.name}.zip")(folder.parent)

    return make


NOTEBOOK = solved_notebook(LAB)
UNTOUCHED = to_text(learner_notebook(LAB))
HTML = "<!DOCTYPE html>\n<html><body>answer_1_6 = 128</body></html>"
ONE = zipped({"01_demo.ipynb": GOOD})
CLASS = zipped({f"{name} in a zip.zip": ONE for name in ("bob", "cleo")})
DEEP = zipped({"c.zip": zipped({"b.zip": zipped({"a.zip": ONE})})})
LOCKED = ONE.replace(b"\x14\x03\x14\x00\x00", b"\x14\x03\x14\x00\x01")  # a bit that says so
WHOLE = zipped({"01_demo.ipynb": GOOD}, zipfile.ZIP_LZMA)
DAMAGED = WHOLE[:60] + bytes(9) + WHOLE[69:]

JUNK = [{}, 7, {"cell_type": "code"}, {"cell_type": "code", "source": 3, "metadata": []}]
JUNK += [{"cell_type": "code", "source": ["1"], "metadata": {"tags": 5}}]

# A lecturer's day, likewise; each name is the learner's.
DAY = {
    "all solved": (text(solved()), 12),
    "nothing done": (text(UNTOUCHED), 0),
    "a wrong number": (text(notebook(e1_6="answer_1_6 = 127")), 0),
    "an import that fails": (text(notebook(e1_8=f"import no_such_module\n{COUNTER}")), 1),
    "a cell deleted": (text(solved(lambda cells: cells.pop(3))), 9),
    "a function renamed": (text(solved(each(lambda source: source.replace("def running_mean", "def mean")))), 9),
    "cells merged": (text(notebook(e1_6=f"answer_1_6 = 128\n{COUNTER}", e1_8="")), 3),
    "cells in reverse": (text(solved(list.reverse)), 12),
    "malformed cells": (text(solved(lambda cells: cells.extend(JUNK))), 12),
    "two answers": (text(notebook("answer_1_6 = 127")), 0),
    "magic lines": (text(notebook(e1_8=f"%%time\n{COUNTER}\n!ls\nfiles = !ls\nCounter?")), 3),
    "an experiment with await": (text(notebook(e1_8=f"{COUNTER}\nawait nothing()")), 3),
    "the kernel of R": (text(solved(metadata={"kernelspec": {"name": "ir", "language": "R"}})), 12),
    "without tags": (text(solved(lambda cells: [cell.update(metadata={}) for cell in cells], metadata={})), 12),
    "carriage returns": (text(solved(each(lambda source: source.replace("\n", "\r")))), 12),
    "format 3": (text(nbformat.writes(nbformat.convert(nbformat.reads(solved(), 4), 3), 3)), 12),
    "a Python export": (text(jupytext.writes(NOTEBOOK, "py:percent"), "01_demo.py"), 12),
    "a notebook saved as text": (text(name="01_demo.ipynb.txt"), 1),
    "an HTML export": (text(HTML, "01_demo.html"), "01_demo.html is an HTML export, not a notebook; ask for the .ipynb"),
    "a screenshot": (text(b"\x89PNG\r\n\x1a\n", "01_demo.png"), "is a picture"),
    "another archive": (text(b"Rar!\x1a", "01_demo.rar"), "is an archive that is not a zip"),
    "notes": (text("I did 1.6", "notes.txt"), "is not valid JSON"),
    "format 3 without cells": (text('{"worksheets": []}'), "older than 4"),
    "another course": (text('{"cells": []}', "homework.ipynb"), "is not one of the labs"),
    "nothing at all": (lambda folder: None, "holds no notebook to grade"),
    "Jupyter's copy alone": (text(name=".ipynb_checkpoints/01_demo.ipynb"), "holds no notebook to grade"),
    "folders in folders": (text(name="a/b/c/01_demo.ipynb"), 1),
    "an export and notes as well": (files_of({"01_demo.ipynb": GOOD, "01_demo.html": HTML, "notes.txt": "x"}), 1),
    "one lab as HTML": (files_of({"01_demo.ipynb": GOOD, "02_next.html": HTML}), "02_next.html is an HTML export"),
    "untouched as well": (files_of({"01_demo (1).ipynb": solved(), "01_demo.ipynb": UNTOUCHED}), 12),
    'Zoë O\'Neil, "🚀"': (text(), 1),
    "Ann Lee": (at_top(zipped({"Ann Lee_123_assignsubmission_file_/a.ipynb": GOOD}), "moodle.zip"), 1),
    "leeann": (at_top(GOOD, "leeann_LATE_1234_5678_01_demo-1.ipynb"), 1),
    "a zip": (at_top(ONE), 1),
    "a zip in a zip": (at_top(zipped({"a.zip": ONE})), 1),
    "bob in a zip": (at_top(CLASS, "class.zip"), 1),
    "cleo in a zip": (lambda folder: folder.rmdir(), 1),
    "zips too deep": (at_top(DEEP), "a.zip is in an archive in an archive in an archive"),
    "a zip that climbs out": (at_top(zipped({"../../01_demo.ipynb": GOOD})), 1),
    "called a zip": (at_top(GOOD), "cannot be unpacked: File is not a zip file"),
    "a zip with a password": (at_top(LOCKED), "password"),
    "a zip of many files": (at_top(zipped({f"{i}.ipynb": "" for i in range(40)})), "holds more than 30 files"),
    "a damaged LZMA zip": (at_top(DAMAGED), "cannot be unpacked: Corrupt input data"),
    "a deep zip": (at_top(zipped({"a/" * 60 + "01_demo.ipynb": GOOD})), "nested more than 50 deep"),
    "spaces without end": (text(notebook(e1_8=" " * 200_000 + "x x")), 1),
    "a zip bomb": (at_top(zipped({"01_demo.ipynb": b"\0" * 2**21})), "or 1 MiB"),
}  # fmt: skip


def test_each_submission_has_its_row_and_costs_no_other_its_grade(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(handed_in, "MAX_ENTRIES", 30)
    monkeypatch.setattr(handed_in, "MAX_MIB", 1)
    cases, folder = CASES | DAY, tmp_path / "all"
    for learner, (make, _) in cases.items():
        (folder / learner).mkdir(parents=True)
        make(folder / learner)
    out = {kind: tmp_path / f"out.{kind}" for kind in ("csv", "json", "html")}
    assert command(folder, *(arg for kind, path in out.items() for arg in (f"--{kind}", path))) == 2
    said, html = capsys.readouterr(), out["html"].read_text()
    assert "not graded; their rows say why" in said.err
    assert "│ Ann Lee " in said.out
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", said.out)
    assert not re.search("<script>|[\x1b\x9b\u202e]", html)
    results = json.loads(out["json"].read_text())["results"]
    table = list(csv.DictReader(out["csv"].read_text().splitlines()))
    assert html.count("<section>") == sum(not row["error"] for row in table)
    assert [r.get("points", "") for r in results] == [int(row["points"]) if row["points"] else "" for row in table]
    rows = {row["learner"]: row for row in table}
    assert rows.keys() == cases.keys()
    found = {}
    for learner, (_, outcome) in cases.items():
        points, error = (rows[learner][column] for column in ("points", "error"))
        found[learner] = int(points) if points else outcome if str(outcome) in error else error
    assert found == {learner: outcome for learner, (_, outcome) in cases.items()}
    assert (rows["a cell deleted"]["1.1"], rows["a cell deleted"]["1.3"]) == ("missing", "passed")
    assert "counted in place of" in rows["untouched as well"]["flags"]
    assert not (tmp_path / "01_demo.ipynb").exists(), "the zip that climbs out"


def test_an_error_of_one_answer_costs_that_answer(grader, monkeypatch):
    run = Lane.run
    monkeypatch.setattr(Lane, "run", lambda self, job: run(self, job) if job.exercise != "1.8" else 1 / 0)
    verdicts = grader.judge(LAB, code_cells(json.loads(notebook(e1_8=COUNTER))))
    assert (verdicts["1.6"].verdict, verdicts["1.8"].verdict) == ("passed", "error")


def test_the_checks_are_never_the_submissions_own(tmp_path, monkeypatch, capsys):
    """Beside the notebook stands a workbook; the command takes the one it is run in."""
    for folder in ("mallory", "lecturer"):
        (tmp_path / folder / "labsolutions").mkdir(parents=True)
    (tmp_path / "mallory" / "01_x.ipynb").write_text(GOOD)
    monkeypatch.chdir(tmp_path / "lecturer")
    for variable in DEMO.environment():
        monkeypatch.delenv(variable, raising=False)
    taken = []
    monkeypatch.setattr("twophase_labs.machine.grading.grade.Grader", lambda book, *rest: taken.append(book) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main([str(tmp_path / "mallory" / "01_x.ipynb")])
    assert [book.root for book in taken] == [tmp_path / "lecturer"]
    monkeypatch.chdir(tmp_path)
    assert (Workbook.find().root / "src" / "twophase").is_dir()
