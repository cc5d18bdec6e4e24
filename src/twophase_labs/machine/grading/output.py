"""Results as files, brought up to date after each notebook: whatever ends the grader, at most one grade is lost."""

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase_labs.machine.grading.files import plain
from twophase_labs.machine.grading.folder import Submission, counted
from twophase_labs.machine.grading.report import page

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for one, if a cell begins so


@dataclass(frozen=True)
class Output:
    """Where the results go; None where they were not asked for.

    Attributes:
        single: One notebook was named: its JSON is the report itself, not a list of one.
    """

    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    single: bool = False

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
            _write(self.csv, to_csv(submissions), last)
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
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*head, *exercises, "error", "path", "flags", "isolation"])
    for s in counted(submissions):
        isolation = s.report.isolation if s.report is not None else ""
        row = [*_cells(s, exercises), s.problem, plain(s.path), "; ".join(s.flags(submissions)), isolation]
        writer.writerow([_no_formula(value) for value in row])
    return out.getvalue()


def _cells(submission: Submission, exercises: Sequence[str]) -> list[Any]:
    report = submission.report
    if report is None:
        return [submission.learner, *[""] * (10 + len(exercises))]
    verdicts = {result.exercise.id: result.verdict.verdict for result in report.results}
    counts = [report.num_attempted, *(report.count(v) for v in ("passed", "by_reference"))]
    counts += [sum(result.revealed for result in report.results), report.count("not_run_here")]
    scores = [report.lab, report.points, report.max_points, report.extra_points, report.max_extra_points]
    return [submission.learner, *scores, *counts, *(verdicts.get(i, "") for i in exercises)]


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
