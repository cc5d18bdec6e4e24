"""Many notebooks at once: a row per learner and lab."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase.core.errors import TwophaseError
from twophase.workbook.grading.grade import Grader, Report
from twophase.workbook.grading.locate import NotGradableError


@dataclass(frozen=True)
class Submission:
    """One notebook found in a folder, and its report or why there is none."""

    learner: str
    path: Path
    report: Report | None = None
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        if self.report is None:
            return {"learner": self.learner, "path": str(self.path), "error": self.problem}
        return {"learner": self.learner, **self.report.to_json()}


def notebooks_in(folder: Path) -> list[Path]:
    """Every notebook below a folder but Jupyter's own copies; a lab's introduction, '00_...', is none to grade."""
    found = folder.rglob("*.ipynb")
    return sorted(p for p in found if ".ipynb_checkpoints" not in p.parts and not p.name.startswith(("00_", ".")))


def learner_of(path: Path, folder: Path, labs: Sequence[str]) -> str:
    """The folder a notebook is in, below the one that was given; else its name without the lab's."""
    parts = path.relative_to(folder).parts
    if len(parts) > 1:
        return parts[0]
    for lab in labs:
        rest = path.stem.replace(lab, "").strip("-_ .")
        if lab in path.stem and rest:
            return rest
    return path.stem


def grade_folder(grader: Grader, folder: Path) -> Iterator[Submission]:
    """Grade each notebook in turn; one that cannot be graded is told and passed over."""
    labs = [lab.name for lab in grader.workbook.labs.values()]
    for path in notebooks_in(folder):
        learner = learner_of(path, folder, labs)
        try:
            yield Submission(learner, path, grader.grade(path))
        except NotGradableError as error:
            yield Submission(learner, path, problem=str(error))
        except (TwophaseError, OSError, RecursionError) as error:
            yield Submission(learner, path, problem=f"grading failed: {error}")


def to_csv(submissions: Sequence[Submission]) -> str:
    """A row per submission: learner, lab, points, counts, and each exercise's verdict."""
    reports = [s.report for s in submissions if s.report is not None]
    exercises = list(dict.fromkeys(r.exercise.id for report in reports for r in report.results))
    head = ["learner", "lab", "points", "max_points", "attempted", "passed", "by_reference", "revealed", "not_run_here"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*head, *exercises, "error", "path"])
    for submission in submissions:
        writer.writerow([*_cells(submission, exercises), submission.problem, submission.path])
    return out.getvalue()


def _cells(submission: Submission, exercises: Sequence[str]) -> list[Any]:
    report = submission.report
    if report is None:
        return [submission.learner, *[""] * (8 + len(exercises))]
    verdicts = {result.exercise.id: result.verdict.verdict for result in report.results}
    counts = [report.num_attempted, *(report.count(v) for v in ("passed", "by_reference"))]
    counts += [sum(result.revealed for result in report.results), report.count("not_run_here")]
    scores = [report.lab, report.points, report.max_points]
    return [submission.learner, *scores, *counts, *(verdicts.get(i, "") for i in exercises)]
