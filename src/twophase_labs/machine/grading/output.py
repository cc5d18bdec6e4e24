"""Results as files, brought up to date after each notebook: whatever ends the grader, at most one grade is lost.

The table is of our own columns, or of those that a learning platform imports:

    Canvas   gradebook: https://community.canvaslms.com/t5/Instructor-Guide/How-do-I-import-grades-in-the-Gradebook/ta-p/807
             (read by https://github.com/instructure/canvas-lms/blob/master/lib/gradebook_importer.rb)
    Moodle   an assignment's offline grading worksheet, read by
             https://github.com/moodle/moodle/blob/MOODLE_405_STABLE/mod/assign/feedback/offline/importgradeslib.php
"""

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from twophase_labs.machine.cards import LOOKS
from twophase_labs.machine.grading.files import plain
from twophase_labs.machine.grading.folder import Submission, counted
from twophase_labs.machine.grading.grade import Report
from twophase_labs.machine.grading.report import page, tally

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for one, if a cell begins so


@dataclass(frozen=True)
class Output:
    """Where the results go; None where they were not asked for.

    Attributes:
        table: The columns of the CSV file.
        single: One notebook was named: its JSON is the report itself, not a list of one.
    """

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    single: bool = False
    table: Literal["own", "canvas", "moodle"] = "own"

    def try_out(self) -> None:
        """
        Raises:
            OSError: one of the files cannot be written. What is in them stays.
        """
        for path in (self.json, self.csv, self.html):
            if path is not None and _is_replaced(path):
                _write_part(path, "").unlink()

    def write(self, submissions: Sequence[Submission], *, last: bool = False) -> None:
        """Replace the files by what is known now; the page, and what is no regular file, are written `last`.

        Raises:
            OSError: one cannot be written.
        """
        if self.csv is not None:
            _write(self.csv, TABLES[self.table](submissions), last)
        if self.json is not None:
            _write(self.json, to_json(submissions, self.single), last)
        if self.html is not None and last and any(s.report is not None for s in submissions):
            _write(self.html, page(submissions), last)


def _is_replaced(path: Path) -> bool:
    """Not a pipe, nor /dev/stdout."""
    return path.is_file() or not path.exists()


def _write(path: Path, text: str, last: bool) -> None:
    """In one step, so that nobody ever finds half of it."""
    if _is_replaced(path):
        os.replace(_write_part(path, text), path.resolve())
    elif last:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _write_part(path: Path, text: str) -> Path:
    target = path.resolve()
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    return part


def to_json(submissions: Sequence[Submission], single: bool, *, ascii_only: bool = False) -> str:
    """The report of one notebook; or {"results": [...]}, a line for each."""
    data = [s.to_json(submissions) for s in counted(submissions)]
    if single and len(data) == 1:
        return json.dumps(data[0], indent=1, ensure_ascii=ascii_only) + "\n"
    rows = ",\n".join(json.dumps(row, ensure_ascii=ascii_only) for row in data)
    return f'{{"results": [\n{rows}\n]}}\n'


def to_csv(submissions: Sequence[Submission]) -> str:
    """A row per submission: learner, lab, points, counts, verdicts, where to look twice, and the isolation."""
    reports = [s.report for s in submissions if s.report is not None]
    exercises = list(dict.fromkeys(r.exercise.id for report in reports for r in report.results))
    head = ["learner", "lab", "points", "max_points", "extra_points", "max_extra_points"]
    head += ["attempted", "passed", "by_reference", "revealed", "not_run_here"]
    rows = [[*head, *exercises, "error", "path", "flags", "isolation"]]
    for s in counted(submissions):
        isolation = s.report.isolation if s.report is not None else ""
        rows.append([*_cells(s, exercises), s.problem, plain(s.path), "; ".join(s.flags(submissions)), isolation])
    return _written(rows)


def to_canvas(submissions: Sequence[Submission]) -> str:
    """A row per learner, a column per lab; what was not graded stays as it is in Canvas."""
    best = _best(submissions)
    labs = {report.lab: report.max_points for report in best.values()}
    rows: list[list[Any]] = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *labs]]
    rows.append(["    Points Possible", "", "", "", "", *labs.values()])
    for learner, number in dict.fromkeys((s.learner, s.platform_id) for s in submissions):
        found = [best.get((learner, number, lab)) for lab in labs]
        rows.append([learner, number, "", "", "", *("" if r is None else r.points for r in found)])
    return _written(rows)


def to_moodle(submissions: Sequence[Submission]) -> str:
    """A row per learner and lab. A worksheet is of one assignment, so one lab should be in it."""
    head = ["Identifier", "Full name", "Grade", "Maximum Grade", "Last modified (grade)", "Feedback comments"]
    rows: list[list[Any]] = [head]
    for (learner, number, _), report in _best(submissions).items():
        rows.append([f"Participant {number}", learner, report.points, report.max_points, "-", _feedback(report)])
    return _written(rows)


def _best(submissions: Sequence[Submission]) -> dict[tuple[str, str, str], Report]:
    """The report of most points by learner, the platform's number and lab."""
    best: dict[tuple[str, str, str], Report] = {}
    for s in submissions:
        if s.report is not None:
            key = (s.learner, s.platform_id, s.report.lab)
            best[key] = max(best.get(key, s.report), s.report, key=lambda report: report.points)
    return best


def _feedback(report: Report) -> str:
    """'1.1 Running mean: passed (3 of 3); 1.2 Cost: not yet (0 of 1)'."""
    told = []
    for result in report.results:
        e, (_, word, _) = result.exercise, LOOKS[result.verdict.verdict]
        told.append(f"{e.id} {e.title}: {word} ({result.points} of {e.points})")
    return "; ".join(told)


TABLES = {"own": to_csv, "canvas": to_canvas, "moodle": to_moodle}


def _written(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([[_no_formula(value) for value in row] for row in rows])
    return out.getvalue()


def _cells(submission: Submission, exercises: Sequence[str]) -> list[Any]:
    report = submission.report
    if report is None:
        return [submission.learner, *[""] * (10 + len(exercises))]
    verdicts = {result.exercise.id: result.verdict.verdict for result in report.results}
    counts = [count for label, count in tally(report) if label != "exercises"]
    scores = [report.lab, report.points, report.max_points, report.extra_points, report.max_extra_points]
    return [submission.learner, *scores, *counts, *(verdicts.get(i, "") for i in exercises)]


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
