"""Many notebooks at once: whatever is wrong with one costs the others nothing."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twophase.core.errors import TwophaseError
from twophase_labs.machine.grading.files import plain
from twophase_labs.machine.grading.grade import Grader, Report
from twophase_labs.machine.grading.handed_in import PLATFORM, Collector, HandedIn, is_archive


@dataclass(frozen=True)
class Submission:
    """One notebook that was handed in, and its report or why there is none."""

    learner: str
    path: Path
    report: Report | None = None
    problem: str = ""

    @property
    def platform_id(self) -> str:
        """The number that Moodle or Canvas wrote beside the learner's name; '' if there is none."""
        found = [match["id"] for part in self.path.parts if (match := PLATFORM.fullmatch(part))]
        return found[0] if found else ""

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
    same = [(o, bool(report.num_attempted)) for o, report in others if _work(o) == _work(submission)]
    again = [plain(o.path) for o, has_work in same if has_work or not mine.num_attempted]
    spare = [plain(o.path) for o, has_work in same if not has_work and mine.num_attempted]
    if copies:
        yield f"the same file as {', '.join(copies[:3])}"
    if again:
        yield f"one of several of this learner and lab: also {', '.join(again[:3])}"
    if spare:
        yield f"counted in place of {', '.join(spare[:3])}, where nothing was attempted"


def grade_one(grader: Grader, path: Path, learner: str, shown: Path | None = None) -> Submission:
    """Grade a notebook. Whatever it does to the grader is its own problem, told in its row.

    Args:
        shown: What to call a file that was in an archive.
    """
    shown = shown or path
    try:
        return Submission(plain(learner), shown, replace(grader.grade(path), path=shown))
    except TwophaseError as error:
        problem = str(error)
    except Exception as error:
        problem = f"grading failed: {type(error).__name__}: {error}"
    return Submission(plain(learner), shown, problem=plain(problem.replace(str(path), str(shown))))


def grade_folder(grader: Grader, folder: Path, results: Sequence[Path | None] = ()) -> Iterator[Submission]:
    """Grade all in a folder or an archive but earlier `results`, as many at once as there are workers.

    Each is given as soon as it is graded; what cannot be graded is told and passed over.
    """

    def grade(one: HandedIn) -> Submission:
        if not one.problem:
            return grade_one(grader, one.path, one.learner, one.shown)
        problem = plain(one.problem.replace(str(one.path), str(one.shown)))
        return Submission(plain(one.learner), one.shown, problem=problem)

    with TemporaryDirectory(prefix="twophase-submissions-") as scratch:
        collector = Collector([lab.name for lab in grader.workbook.labs.values()], Path(scratch))
        if is_archive(folder):
            found = collector.in_archive(folder, folder, folder.stem, is_collection=True)
        else:
            found = collector.in_folder(folder, folder)
        yield from grader.at_once(grade, (one for one in found if one.path not in results))


def counted(submissions: Sequence[Submission]) -> list[Submission]:
    """All but copies without work beside a notebook of the same learner and lab that has some; see `_relations`."""
    worked = {_work(s) for s in submissions if s.report is not None and s.report.num_attempted}
    return [s for s in submissions if s.report is None or s.report.num_attempted or _work(s) not in worked]


def _work(submission: Submission) -> tuple[str, str]:
    return submission.learner, submission.report.lab if submission.report is not None else ""
