"""One notebook graded: which answer runs when, and what the report says."""

import ast
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.grading.files import (
    NotGradableError,
    parse_notebook,
    plain,
    plain_lines,
    progress_of,
    read_bytes,
)
from twophase_labs.machine.grading.flags import Flag, flags
from twophase_labs.machine.grading.helpers import definitions, needed
from twophase_labs.machine.grading.lane import Job, Lane
from twophase_labs.machine.grading.locate import Cell, code_cells, locate, older_build, which_lab
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.lab import Lab, Workbook, WorkbookError

One = TypeVar("One")
Made = TypeVar("Made")
DISCLAIMER = (
    "Each answer runs in a process of its own, with its check and limits of time and memory. Where the isolation says "
    "namespaces, it sees no other submission and no network, and leaves nothing behind; where it says limits only, it "
    "can do whatever your account can. An answer can deceive its own check, as it can copy the printed solution; flags "
    "are found in the source alone. This limits accidents; it is no security sandbox: run notebooks of people you "
    "don't trust in a virtual machine."
)


@dataclass(frozen=True)
class Result:
    """One exercise of a report."""

    exercise: Exercise
    verdict: Verdict
    revealed: bool = False
    attempts: int = 0

    @property
    def points(self) -> int:
        return self.exercise.points if self.verdict.passed else 0

    def to_json(self) -> dict[str, Any]:
        v = self.verdict
        return {
            "id": self.exercise.id,
            "title": self.exercise.title,
            "points": self.points,
            "max_points": self.exercise.points,
            "is_extra": self.exercise.is_extra,
            "verdict": v.verdict,
            "reason": v.reason,
            "hint": v.hint,
            "property": v.failed_property,
            "details": list(v.details),
            "notes": list(v.notes),
            "revealed": self.revealed,
            "attempts": self.attempts,
        }


@dataclass(frozen=True)
class Report:
    """One notebook's grade: the points of its core exercises, and beside them those of its extra ones.

    Attributes:
        isolation: What stood between the answers and the grader, and between one answer and another's.
        digest: Of the file's content, to recognise a copy.
    """

    lab: str
    path: Path
    results: tuple[Result, ...]
    warnings: tuple[str, ...]
    flags: tuple[Flag, ...]
    isolation: str
    digest: str
    elapsed_s: float

    @property
    def points(self) -> int:
        return sum(result.points for result in self.core)

    @property
    def max_points(self) -> int:
        return sum(result.exercise.points for result in self.core)

    @property
    def points_not_run_here(self) -> int:
        return sum(r.exercise.points for r in self.core if r.verdict.verdict == "not_run_here")

    @property
    def extra_points(self) -> int:
        return sum(result.points for result in self.extra)

    @property
    def max_extra_points(self) -> int:
        return sum(result.exercise.points for result in self.extra)

    @property
    def core(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if not result.exercise.is_extra)

    @property
    def extra(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.exercise.is_extra)

    def count(self, verdict: str) -> int:
        return sum(result.verdict.verdict == verdict for result in self.results)

    @property
    def num_attempted(self) -> int:
        return sum(r.verdict.verdict not in ("not_attempted", "missing", "not_run_here") for r in self.results)

    def to_json(self) -> dict[str, Any]:
        return {
            "lab": self.lab,
            "path": plain(self.path),
            "points": self.points,
            "max_points": self.max_points,
            "points_not_run_here": self.points_not_run_here,
            "extra_points": self.extra_points,
            "max_extra_points": self.max_extra_points,
            "exercises": [result.to_json() for result in self.results],
            "warnings": list(self.warnings),
            "flags": [{"kind": flag.kind, "cell": flag.cell, "what": flag.what} for flag in self.flags],
            "isolation": self.isolation,
            "elapsed_s": round(self.elapsed_s, 2),
            "disclaimer": DISCLAIMER,
        }


class Grader:
    """Grades notebooks of one workbook, with workers kept warm from one to the next. Close it when done.

    Attributes:
        only: Ids of the exercises to grade; all if empty.
        budget_s: For a whole notebook by the clock; what an exercise leaves of its share the others have.
    """

    def __init__(
        self,
        workbook: Workbook,
        num_workers: int | None = None,
        only: frozenset[str] = frozenset(),
        budget_s: int | float | None = None,
    ) -> None:
        self.workbook, self.only, self.budget_s = workbook, only, budget_s
        self.num_workers = num_workers or min(4, os.cpu_count() or 1)
        self._idle: list[Lane] = []
        self._busy: list[Lane] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for lane in (*self._idle, *self._busy):
            lane.stop()
        self._idle.clear()

    def grade(self, path: Path) -> Report:
        """Grade one file.

        Raises:
            NotGradableError: the file is no notebook of this workbook.
            WorkbookError: the lab itself is broken.
        """
        begun = time.monotonic()
        content = read_bytes(path)
        notebook = parse_notebook(content, path)
        cells = code_cells(notebook)
        lab = which_lab(notebook, cells, path, self.workbook)
        graded = [exercise for i, exercise in lab.exercises.items() if not self.only or i in self.only]
        if not graded:
            raise NotGradableError(f"{path} is lab {lab.number}, which has none of {', '.join(sorted(self.only))}")
        warnings = []
        if older_build(notebook, lab):
            warnings.append(
                f"This notebook was built from another version of lab {lab.number}; what has changed since may be "
                f"missing. `twophase labs reset {lab.number}` gives a fresh copy and keeps this one."
            )
        progress: dict[str, dict[str, Any]] = {}
        try:
            progress = progress_of(path)
        except NotGradableError as error:
            warnings.append(plain(f"{error}; attempts, and solutions looked at, are not known from it."))
        with self._lane(lab) as lane:
            verdicts = _verdicts(lane, lab, cells, self.only, self.budget_s and begun + self.budget_s)
            isolation = lane.isolation or "nothing ran"
        revealed = _reveals(cells) | {e for e, entry in progress.items() if entry.get("revealed")}
        results = tuple(
            Result(e, _shown(verdicts[e.id]), e.id in revealed, _number(progress.get(e.id, {}).get("attempts")))
            for e in graded
        )
        found = tuple(replace(flag, what=plain(flag.what)) for flag in flags(cells, lab))
        digest = hashlib.sha256(content).hexdigest()
        return Report(lab.name, path, results, tuple(warnings), found, isolation, digest, time.monotonic() - begun)

    def judge(self, lab: Lab, cells: Sequence[Cell]) -> dict[str, Verdict]:
        """A verdict for every exercise of the lab, judged after those it uses."""
        with self._lane(lab) as lane:
            return _verdicts(lane, lab, cells)

    def run_all(self, lab: Lab, jobs: Sequence[Job]) -> list[Verdict]:
        """Judge unrelated answers, as many at once as there are workers."""

        def run(numbered: tuple[int, Job]) -> tuple[int, Verdict]:
            with self._lane(lab) as lane:
                return numbered[0], _run(lane, numbered[1])

        return [verdict for _, verdict in sorted(self.at_once(run, enumerate(jobs)), key=lambda pair: pair[0])]

    def at_once(self, function: Callable[[One], Made], items: Iterable[One]) -> Iterator[Made]:
        """`function` of each item, as they end, one for each worker at a time. An interruption ends the workers."""
        pool = ThreadPoolExecutor(self.num_workers)
        try:
            for future in as_completed([pool.submit(function, item) for item in items]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise
        pool.shutdown()

    @contextmanager
    def _lane(self, lab: Lab) -> Iterator[Lane]:
        """A worker of this lab, warm if there is one; that of another lab is closed for it if there are too many."""
        with self._lock:
            lane = next((lane for lane in self._idle if lane.lab.name == lab.name), None) or Lane(self.workbook, lab)
            if lane in self._idle:
                self._idle.remove(lane)
            elif self._idle and len(self._idle) + len(self._busy) >= self.num_workers:
                self._idle.pop(0).stop()
            self._busy.append(lane)
        try:
            yield lane
        except BaseException:
            lane.close()  # it may be in the middle of something
            raise
        finally:
            with self._lock:
                self._busy.remove(lane)
                self._idle += [lane] * (not lane.is_stopped)


def _verdicts(
    lane: Lane, lab: Lab, cells: Sequence[Cell], only: frozenset[str] = frozenset(), deadline: float | None = None
) -> dict[str, Verdict]:
    """Of every exercise that has an answer, or of those in `only` and what these use; each after all that it uses."""
    found = {i: locate(exercise, lab.templates[i], cells) for i, exercise in lab.exercises.items()}
    answers = {i: cell for i, cell in found.items() if isinstance(cell, Cell)}
    verdicts = {i: verdict for i, verdict in found.items() if isinstance(verdict, Verdict)}
    defined = definitions(cells, lab, answers)
    run = {other for i in only or lab.exercises if i in lab.exercises for other in (i, *lab.all_uses(i))}
    order = sorted((i for i in answers if i in run), key=lambda i: len(lab.all_uses(i)))
    if order and deadline is not None:
        lane.start()
    for num_run, i in enumerate(order):
        uses = lab.all_uses(i)
        good = {other: answers[other].source for other in uses if verdicts[other].passed}
        taken = {name for other in (i, *uses) for name in lab.exercises[other].names}
        helpers, aliases = needed(defined, [answers[i].source, *good.values()], answers[i], taken)
        fall_back = tuple(other for other in uses if other not in good)
        share_s = None if deadline is None else max(1.0, (deadline - time.monotonic()) / (len(order) - num_run))
        verdicts[i] = _run(lane, Job(i, answers[i].source, helpers, aliases, good, fall_back, share_s=share_s))
    return verdicts


def _run(lane: Lane, job: Job) -> Verdict:
    try:
        return lane.run(job)
    except WorkbookError:
        raise
    except Exception as error:  # whatever an answer sent back, it costs that answer alone
        lane.close()
        return Verdict(job.exercise, "error", f"what came back of your code is no verdict ({type(error).__name__})")


def _shown(verdict: Verdict) -> Verdict:
    """The same, safe to print: an answer may have chosen the words."""
    return replace(
        verdict,
        reason=plain(verdict.reason),
        details=tuple(map(plain_lines, verdict.details)),
        hint=plain_lines(verdict.hint),
        failed_property=plain(verdict.failed_property),
        held=tuple(map(plain, verdict.held)),
        notes=tuple(map(plain, verdict.notes)),
    )


def _number(attempts: object) -> int:
    """A count that a learner could have edited."""
    return attempts if type(attempts) is int and 0 <= attempts < 10**6 else 0


def _reveals(cells: Sequence[Cell]) -> set[str]:
    """Exercises that the notebook itself asks the solution of."""
    calls = [node for cell in cells for node in cell.nodes if isinstance(node, ast.Call)]
    return {
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "reveal"
        if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str)
    }
