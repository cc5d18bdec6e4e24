"""Many notebooks at once: whatever is wrong with one costs the others nothing."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase.core.errors import TwophaseError
from twophase_labs.machine.grading.files import plain
from twophase_labs.machine.grading.grade import Grader, Report


@dataclass(frozen=True)
class Submission:
    """One notebook that was handed in, and its report or why there is none."""

    learner: str
    path: Path
    report: Report | None = None
    problem: str = ""

    def flags(self, among: "Sequence[Submission]" = ()) -> list[str]:
        """Where a lecturer should look: at cells of the notebook, and at other submissions."""
        is_link = os.path.islink(self.path)  # unlike Path.is_symlink, it does not raise where a path is too long
        link = [f"a link to {plain(os.readlink(self.path))}"] if is_link else []
        inside = [str(flag) for flag in self.report.flags] if self.report is not None else []
        return [*link, *_relations(self, among), *inside]

    def to_json(self, among: "Sequence[Submission]" = ()) -> dict[str, Any]:
        if self.report is None:
            return {"learner": self.learner, "path": plain(self.path), "error": self.problem}
        return {"learner": self.learner, **self.report.to_json(), "suspicions": self.flags(among)}


def _relations(submission: Submission, among: Sequence[Submission]) -> Iterator[str]:
    """A copy of another's notebook, and a second notebook of one lab. Untouched copies are nobody's work."""
    mine = submission.report
    if mine is None:
        return
    others = [(other, other.report) for other in among if other is not submission and other.report is not None]
    copies = [plain(o.path) for o, report in others if report.digest == mine.digest and mine.num_attempted]
    again = [plain(o.path) for o, report in others if o.learner == submission.learner and report.lab == mine.lab]
    if copies:
        yield f"the same file as {', '.join(copies[:3])}"
    if again:
        yield f"one of several of this learner and lab: also {', '.join(again[:3])}"


def notebooks_in(folder: Path) -> list[Path]:
    """Every notebook below a folder but Jupyter's own copies; a lab's introduction, '00_...', is none to grade.

    Folders that cannot be opened are in the list too, so that nobody's work is passed over without a word.
    """
    found: list[Path] = []
    shut: list[Path] = []
    for parent, folders, files in os.walk(folder, onerror=lambda error: shut.append(Path(error.filename))):
        names = [name for name in (*folders, *files) if name.endswith(".ipynb")]
        found += [Path(parent, name) for name in names if not name.startswith(("00_", "."))]
    return sorted([*(p for p in found if ".ipynb_checkpoints" not in p.parts), *shut])


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


def grade_one(grader: Grader, path: Path, learner: str) -> Submission:
    """Grade a notebook. Whatever it does to the grader is its own problem, told in its row."""
    try:
        return Submission(plain(learner), path, grader.grade(path))
    except TwophaseError as error:
        return Submission(plain(learner), path, problem=plain(error))
    except Exception as error:
        grader.close()  # its workers may be in the middle of something
        return Submission(plain(learner), path, problem=plain(f"grading failed: {type(error).__name__}: {error}"))


def grade_folder(grader: Grader, folder: Path, notebooks: Sequence[Path]) -> Iterator[Submission]:
    """Grade each in turn; one that cannot be graded is told and passed over."""
    labs = [lab.name for lab in grader.workbook.labs.values()]
    for path in notebooks:
        yield grade_one(grader, path, learner_of(path, folder, labs))
