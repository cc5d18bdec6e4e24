"""What a notebook file may hold: reading it ends, what is wrong with it is said, and its words do nothing."""

import base64
import json
from pathlib import Path

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.machine.build import solved_notebook
from twophase_labs.machine.cards import Card
from twophase_labs.machine.grading.files import (
    MAX_MIB,
    NotGradableError,
    parse_notebook,
    plain,
    plain_lines,
    progress_of,
    read_bytes,
    text_of,
)
from twophase_labs.machine.grading.folder import Submission, counted, grade_one
from twophase_labs.machine.grading.grade import Grader, Report, Result, _number, _reveals, _shown
from twophase_labs.machine.grading.handed_in import learner_of
from twophase_labs.machine.grading.locate import Cell, as_python, code_cells, locate
from twophase_labs.machine.judge import Verdict, learners_line, run_cell


def code(*sources):
    return json.dumps({"cells": [{"cell_type": "code", "source": source} for source in sources]}).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"[]", "without a list of cells"),
        (b'{"cells": 3}', "without a list of cells"),
        (code("x = 1")[:30], "was it saved whole?"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"cells": [], "n": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b"PK\x03\x04", "or an office document"),
        (code("x" * 2_000_000), "hold 2,000,000 characters"),
        (b'{"cells": [' + b"{}," * 5_000 + b"{}]}", "5,001 cells; at most 5,000"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_notebook_says_why(content, why):
    with pytest.raises(NotGradableError) as refused:
        parse_notebook(content, Path("a.ipynb"))
    assert why in str(refused.value)


def test_the_header_of_a_python_export_is_not_read():
    """Its YAML could make gigabytes of a few lines."""
    bomb = b"# ---\n# jupyter:\n#   a: &a [x, x]\n#   b: [*a, *a]\n# ---\n\n# %%\nx = 1\n"
    read = parse_notebook(bomb, Path("a.py"))
    assert code_cells(read)[-1].source == "x = 1"
    assert "b" not in read["metadata"]


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(MAX_MIB * 2**20 + 1)
    too_long = Path("d" * 300), "cannot be read: File name too long"
    for path, why in ((Path("/dev/null"), "pipe or a device"), (large, "larger than 64 MiB"), too_long):
        with pytest.raises(NotGradableError, match=why):
            read_bytes(path)
    assert text_of(b"\xef\xbb\xbf{}", tmp_path) == "{}"


@pytest.mark.parametrize("content", ["[" * 100_000, "[1]", '{"exercises": 3}', "{"])
def test_a_progress_file_that_is_none(tmp_path, content):
    (tmp_path / "a.progress.json").write_text(content)
    with pytest.raises(NotGradableError, match="is not a progress file"):
        progress_of(tmp_path / "a.ipynb")
    assert [_number(value) for value in (3, "abc", None, float("inf"), -1, 10**9)] == [3, 0, 0, 0, 0, 0]
    assert _reveals([Cell(1, f"reveal('1.6'), reveal(16), reveal(0x{'f' * 5000})", None)]) == {"1.6"}


def test_line_ends_change_nothing():
    cells = code_cells(solved_notebook(LAB))
    for end in ("\r", "\r\n"):
        content = json.loads(code(*(cell.source.replace("\n", end) for cell in cells)))
        assert [cell.source for cell in code_cells(content)] == [cell.source for cell in cells]
    with pytest.raises(ZeroDivisionError) as caught:
        run_cell("'\x0c\x0b\u2028\x85\x1c'\r1 / 0", {}, "<exercise 1.1>")
    assert learners_line(caught.value) == "line 2 of the cell: 1 / 0"


@pytest.mark.parametrize(
    ("source", "python"),
    [
        ("len?", "pass"),
        ("torch.nn??\nx = 1", "pass\nx = 1"),
        ("?len\n??len", "pass\npass"),
        ("!ls -l\nfiles = !ls", "pass\nfiles = None"),
        ("def f():\n    !ls\n    x = %pwd", "def f():\n    pass\n    x = None"),
        ("%%time\nx = 1", "pass\nx = 1"),
        ("%%bash\nif [ 1 ]; then", "pass"),
        ("await go(1,\n  2); x = 1", "pass\npass"),
        ("async for x in y:\n    z\nq = 1", "pass\npass\nq = 1"),
        ("async def f():\n    await g()", "async def f():\n    await g()"),
        ('s = """\n%d items\nreally?\n!x\n"""', 's = """\n%d items\nreally?\n!x\n"""'),
        ("def f(:", "def f(:"),
    ],
)
def test_what_only_a_notebook_understands(source, python):
    assert as_python(source) == python


def test_code_nested_without_end_is_no_python_and_is_read_once():
    assert Cell(1, f"x = {'-' * 100_000}1", None).tree is None
    cell = Cell(1, "x = 1", None)
    assert cell.tree is cell.tree


SHIPPED, SOLVED = LAB.templates["1.1"].shipped(), LAB.templates["1.1"].filled()


@pytest.mark.parametrize(
    ("cells", "verdict", "said"),
    [
        ([SOLVED, "running_mean = len"], "error", "cells 1 and 2 both define running_mean, each differently"),
        ([SHIPPED], "not_attempted", "not attempted"),
        ([], "missing", "no cell defines running_mean; was the exercise's cell deleted?"),
        ([SOLVED.replace("running_mean", "mean")], "missing", "no longer defines running_mean; it defines mean"),
    ],
)
def test_which_cell_answers(cells, verdict, said):
    found = [Cell(number, source, "1.1") for number, source in enumerate(cells, start=1)]
    told = locate(LAB.exercises["1.1"], LAB.templates["1.1"], found)
    assert (told.verdict, said in told.reason) == (verdict, True), told
    assert verdict != "missing" or "`twophase labs show 1.1`" in told.details[-1]


def test_one_error_costs_one_grade(monkeypatch):
    monkeypatch.setattr(Grader, "grade", lambda self, path: {}["points"])
    assert "grading failed: KeyError: 'points'" in grade_one(Grader(DEMO, 1), Path("a"), "ann").problem


def test_copies_links_and_second_notebooks_are_told(tmp_path):
    tried = (Result(LAB.exercises["1.6"], Verdict("1.6", "failed", "no")),)
    (tmp_path / "dan").symlink_to("ann")
    given = [
        ("ann", "d1", tried),
        ("bob", "d2", tried),
        ("dan", "d1", tried),
        ("eve", "d3", tried),
        ("eve", "d4", tried),
    ]
    given += [("fay", "d5", ()), ("gus", "d5", ()), ("hal", "d6", tried), ("hal", "d7", ())]
    found = [
        Submission(learner, tmp_path / learner, Report("01_demo", Path("x"), results, (), (), "", digest, 1.0))
        for learner, digest, results in given
    ]
    assert [[flag.partition(str(tmp_path))[0] for flag in one.flags(found)] for one in found] == [
        ["the same file as "],
        [],
        ["a link to ann", "the same file as "],
        *[["one of several of this learner and lab: also "]] * 2,
        *[[]] * 2,  # untouched copies are nobody's work
        ["counted in place of "],
        ["one of several of this learner and lab: also "],
    ]
    assert counted(found) == found[:-1]


def test_who_handed_in(tmp_path):
    names, moodle, canvas = ["01_demo"], "Ann Lee_123_assignsubmission_file_", "Ann Lee_LATE_1234_567_01_demo-1.ipynb"
    assert learner_of(tmp_path / "ann" / "week1" / "01_demo.ipynb", tmp_path, names) == "ann"
    assert learner_of(tmp_path / "ann_01_demo.ipynb", tmp_path, names) == "ann"
    assert learner_of(tmp_path / "01_demo.ipynb", tmp_path, names) == "01_demo"
    for name, number in ((moodle, "123"), (canvas, "1234")):
        assert learner_of(tmp_path / "bundle.zip" / name, tmp_path, names) == "Ann Lee"
        assert Submission("Ann Lee", Path("bundle.zip", name, "a.ipynb")).platform_id == number
    long = Submission("ann", tmp_path / "/".join(["d" * 50] * 85))
    assert (long.platform_id, long.flags()) == ("", [])


def test_text_to_show():
    assert plain("a\x1b[2J\u202e\udcff\x9bö\n\t\r") == r"a\x1b[2J\u202e\udcff\x9bö\n\t\r"
    assert len(plain("x" * 10**6)) < 5000
    assert plain_lines("a\n\tb\x1b") == "a\n    b\\x1b"
    hostile, shown = "\x1b[2J\udcff", r"\x1b[2J\udcff"
    verdict = Verdict("1.6", "failed", hostile, (hostile,), hostile, hostile, (hostile,), (hostile,))
    assert _shown(verdict) == Verdict("1.6", "failed", shown, (shown,), shown, shown, (shown,), (shown,))


def test_a_forged_picture_is_dropped():
    png = base64.b64encode(b"\x89PNG\r\n\x1a\n...").decode()
    for picture, shown in [(png, True), (f'{png}"><script>', False), ("", False), ("YWJj", False), ("ö", False)]:
        html = Card("•", "a", "red", picture=picture)._repr_html_()
        assert ("<img" in html, "<script" in html) == (shown, False)
