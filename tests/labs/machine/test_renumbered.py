"""Notebooks and progress files of the first edition in labs whose exercises have other numbers today."""

import copy
import json
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell

from tests.labs.demo import LAB as BEFORE
from tests.labs.renumbered import LAB, RENUMBERED
from twophase_labs.machine.build import learner_notebook, solved_notebook, to_text
from twophase_labs.machine.grading.folder import Submission
from twophase_labs.machine.grading.grade import Grader
from twophase_labs.machine.grading.locate import code_cells
from twophase_labs.machine.grading.report import page
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.progress import Progress, progress_path
from twophase_labs.machine.prove import prove

REAL = Path(__file__).parent / "first_edition"


@pytest.fixture(scope="module")
def grader():
    with Grader(RENUMBERED, 1) as grader:
        yield grader


@pytest.fixture
def graded(grader, tmp_path):
    """The report on a notebook, by exercise."""

    def grade(notebook):
        path = tmp_path / "01_demo.ipynb"
        path.write_text(notebook if isinstance(notebook, str) else to_text(notebook))
        report = grader.grade(path)
        return report, {result.exercise.id: result.verdict for result in report.results}

    return grade


def test_the_lab_of_today_keeps_its_promises(grader):
    rows = prove(grader, LAB)
    assert [row for row in rows if not row.holds and row.answer in ("shipped", "solved")] == []


def test_a_solved_notebook_of_the_first_edition(graded):
    assert "edition" not in BEFORE.notebook.metadata["twophase"]
    report, verdicts = graded(solved_notebook(BEFORE))
    assert {i: v.verdict for i, v in verdicts.items()} == {
        "1.1": "passed", "1.2": "passed", "1.3": "passed", "1.4": "passed", "1.5": "passed", "1.6": "not_attempted",
    }  # fmt: skip
    assert verdicts["1.6"].reason == "not attempted: new in the second edition"
    assert verdicts["1.3"].notes == (), "with the learner's own running_mean, not the reference"
    assert report.gone == ("1.5", "1.6", "1.7")
    (warning,) = report.warnings
    assert "notebook of the first edition" in warning
    assert warning.endswith("No longer in the course, and worth no points: 1.5, 1.6, 1.7.")
    assert report.to_json()["no_longer_in_the_course"] == ["1.5", "1.6", "1.7"]
    assert "1.5, 1.6, 1.7" in page([Submission("ann", report.path, report)])


def test_an_untouched_notebook_of_the_first_edition(graded):
    report, verdicts = graded(learner_notebook(BEFORE))
    assert {v.verdict for v in verdicts.values()} == {"not_attempted"}
    assert report.num_attempted == 0


def test_half_filled_and_wrong_answers_say_so_in_todays_numbers(graded):
    notebook = learner_notebook(BEFORE)
    for cell in notebook.cells:
        cell.source = cell.source.replace('____("1.1", 1, "the sum up to each position")', "x.cumsum(-1)")
        cell.source = cell.source.replace('____("1.2", 1, "one letter")', '"a"')
    _, verdicts = graded(notebook)
    assert verdicts["1.2"].verdict == "failed"
    assert "Exercise 1.2, blank 2" in verdicts["1.2"].reason
    assert verdicts["1.5"].reason.startswith("'a' is not the answer")


def test_what_is_new_is_not_answered_by_an_old_cell_of_its_number(graded):
    """`answer_1_6 = 128` was the answer to another question, and would be right."""
    _, verdicts = graded(solved_notebook(BEFORE))
    assert verdicts["1.6"].verdict == "not_attempted"


def test_cells_that_ask_for_answers_ask_for_todays(graded):
    notebook = solved_notebook(BEFORE)
    for cell in notebook.cells:
        if cell.source.startswith("def centred"):
            cell.source = "means = use('1.1')\n" + cell.source.replace("running_mean(x)", "means(x)")
    notebook.cells.append(new_code_cell('reveal("1.8")\nuse("1.7")\nhint("1.4")', id="new"))
    report, verdicts = graded(notebook)
    assert verdicts["1.3"].passed
    assert [result.exercise.id for result in report.results if result.revealed] == ["1.4"]


def test_a_notebook_of_today_is_read_as_it_is(graded):
    report, verdicts = graded(solved_notebook(LAB))
    assert {v.verdict for v in verdicts.values()} == {"passed"}
    assert (report.warnings, report.gone) == ((), ())


@pytest.mark.parametrize("notebook", [solved_notebook(BEFORE), solved_notebook(LAB)])
def test_a_notebook_without_its_note_is_known_by_its_answers(graded, notebook):
    notebook = copy.deepcopy(notebook)
    is_old = "edition" not in notebook.metadata.pop("twophase")
    report, verdicts = graded(notebook)
    assert bool(report.gone) == is_old
    assert verdicts["1.2"].passed
    assert verdicts["1.6"].passed != is_old


ENTRIES = {
    "1.1": {"attempts": 3, "verdict": "passed", "hints": 2},
    "1.4": {"prediction": 200.0, "measured": 5050.0},
    "1.5": {"attempts": 1, "verdict": "failed"},
    "1.8": {"revealed": True},
}


def test_a_progress_file_of_the_first_edition_is_read_and_nothing_of_it_lost(tmp_path):
    path = tmp_path / "01_demo.progress.json"
    path.write_text(json.dumps({"version": 1, "exercises": ENTRIES}))
    assert Progress(path, LAB.was).all() == {"1.2": ENTRIES["1.1"], "1.1": ENTRIES["1.4"], "1.4": ENTRIES["1.8"]}
    for _ in range(2):  # it is translated once
        Progress(path, LAB.was).record("1.3", lambda entry: entry.update(hints=1))
    written = json.loads(path.read_text())
    assert written["edition"] == 2
    assert written["exercises"] == {
        "1.2": ENTRIES["1.1"], "1.1": ENTRIES["1.4"], "1.4": ENTRIES["1.8"], "1.3": {"hints": 1},
    }  # fmt: skip
    assert written["first_edition"] == {"1.5": ENTRIES["1.5"]}


def test_a_new_progress_file_says_its_edition(tmp_path):
    path = tmp_path / "01_demo.progress.json"
    Progress(path, LAB.was).record("1.5", lambda entry: entry.update(hints=1))
    Progress(path, LAB.was).record("1.1", lambda entry: entry.update(hints=2))
    assert json.loads(path.read_text())["exercises"] == {"1.5": {"hints": 1}, "1.1": {"hints": 2}}
    other = tmp_path / "02_demo.progress.json"
    Progress(other, BEFORE.was).record("1.5", lambda entry: entry.update(hints=1))
    assert json.loads(other.read_text()) == {"version": 1, "exercises": {"1.5": {"hints": 1}}}


def test_the_grader_reads_a_progress_file_of_the_first_edition(graded, tmp_path):
    progress_path(tmp_path / "01_demo.ipynb").write_text(json.dumps({"version": 1, "exercises": ENTRIES}))
    report, _ = graded(solved_notebook(BEFORE))
    told = {result.exercise.id: (result.attempts, result.revealed) for result in report.results}
    assert told["1.2"] == (3, False)
    assert told["1.4"] == (0, True)
    assert told["1.5"] == (0, False), "that of the old 1.5 is another exercise's"


WORKBOOK = Workbook(Path(__file__).parents[3])


@pytest.mark.parametrize("name", [path.stem for path in sorted(REAL.glob("*.json"))])
def test_an_exercise_says_what_it_was(name):
    """The first edition had it, and one that has kept its number and its function says that, for progress files."""
    lab = WORKBOOK.lab(name)
    before = {cell.exercise: cell for cell in code_cells(json.loads((REAL / f"{name}.json").read_text()))}
    silent = [e for e in lab.exercises.values() if lab.was and not e.was and e.is_code and e.id in before]
    assert [e.id for e in silent if before[e.id].own_names.issuperset(e.names)] == []
    assert [i for i in lab.was if i not in before] == []
    assert len(lab.was) == sum(bool(e.was) for e in lab.exercises.values() if lab.edition > 1), "two were the same"


@pytest.mark.full
@pytest.mark.parametrize("name", [path.stem for path in sorted(REAL.glob("*.json"))])
def test_a_real_notebook_of_the_first_edition(name, tmp_path):
    """Its solved exercise cells. Those of a lab that was not renumbered are right, as they were."""
    path = tmp_path / f"{name}.ipynb"
    path.write_text((REAL / f"{name}.json").read_text())
    tags = [
        t for c in json.loads(path.read_text())["cells"] for t in c["metadata"]["tags"] if t.startswith("exercise:")
    ]
    lab = WORKBOOK.lab(name)
    with Grader(WORKBOOK) as grader:
        report = grader.grade(path)
    verdicts = {result.exercise.id: result.verdict for result in report.results}
    if not lab.was:
        assert {i: v for i, v in verdicts.items() if not v.passed and v.verdict != "not_run_here"} == {}
        return
    kept = {i: verdicts[i] for i in lab.was.values()}
    assert len(kept) + len(report.gone) == len(tags)
    lost = {i: v for i, v in kept.items() if v.verdict in ("missing", "not_attempted", "timeout")}
    assert lost == {}
    num_passed = sum(v.passed or v.verdict == "not_run_here" for v in kept.values())
    assert 2 * num_passed > len(kept), {i: v.reason for i, v in kept.items() if not v.passed}
