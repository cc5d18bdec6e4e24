"""One notebook graded: which answer runs when, and what the report says."""

import ast
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

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

DISCLAIMER = (
    "Each answer runs in a process of its own, with limits of time and memory. Where the isolation says namespaces, it "
    "sees no solutions, no other submission and no network, and leaves nothing behind; where it says process only, it "
    "can do whatever your account can. A check that ran in the answer's own process can be deceived by that answer, "
    "and flags are found in the source alone. This limits accidents and cheating; it is no security sandbox: run "
    "notebooks of people you don't trust in a virtual machine."
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
            "checked_in": v.checked_in,
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
    def checked_in_answer(self) -> tuple[str, ...]:
        """Ids of exercises whose check ran in the answer's own process, which could have deceived it."""
        return tuple(r.exercise.id for r in self.results if r.verdict.checked_in == "answer")

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
            "checked_in_answer": list(self.checked_in_answer),
            "elapsed_s": round(self.elapsed_s, 2),
            "disclaimer": DISCLAIMER,
        }


class Grader:
    """Grades notebooks of one workbook, with workers kept warm from one to the next. Close it when done."""

    def __init__(self, workbook: Workbook, num_workers: int | None = None) -> None:
        self.workbook = workbook
        self.num_workers = num_workers or min(4, os.cpu_count() or 1)
        self._lanes: list[Lane] = []
        self._lab = ""

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        self._lanes, self._lab = [], ""

    def grade(self, path: Path, done: Callable[[Result], None] = lambda result: None) -> Report:
        """Grade one file; `done` hears of each exercise as it is settled.

        Raises:
            NotGradableError: the file is no notebook of this workbook.
            WorkbookError: the lab itself is broken.
        """
        begun = time.monotonic()
        content = read_bytes(path)
        notebook = parse_notebook(content, path)
        cells = code_cells(notebook)
        lab = which_lab(notebook, cells, path, self.workbook)
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
        verdicts = self.judge(lab, cells, lambda e, v: done(Result(e, v)))
        revealed = _reveals(cells) | {e for e, entry in progress.items() if entry.get("revealed")}
        results = tuple(
            Result(exercise, _shown(verdicts[i]), i in revealed, _number(progress.get(i, {}).get("attempts")))
            for i, exercise in lab.exercises.items()
        )
        found = tuple(replace(flag, what=plain(flag.what)) for flag in flags(cells, lab))
        digest = hashlib.sha256(content).hexdigest()
        elapsed_s = time.monotonic() - begun
        return Report(lab.name, path, results, tuple(warnings), found, self._isolation(), digest, elapsed_s)

    def _isolation(self) -> str:
        kinds = {str(getattr(lane, "isolation", "process")) for lane in self._lanes}
        return ", ".join(sorted(kinds - {""})) or "nothing ran"  # '' is of a lane that has not started

    def judge(
        self,
        lab: Lab,
        cells: Sequence[Cell],
        done: Callable[[Exercise, Verdict], None] = lambda e, v: None,
    ) -> dict[str, Verdict]:
        """A verdict for every exercise of the lab, judged as soon as those it uses are."""
        found = {i: locate(exercise, lab.templates[i], cells) for i, exercise in lab.exercises.items()}
        answers = {i: cell for i, cell in found.items() if isinstance(cell, Cell)}
        verdicts = {i: verdict for i, verdict in found.items() if isinstance(verdict, Verdict)}
        for i, verdict in verdicts.items():
            done(lab.exercises[i], verdict)
        defined = definitions(cells, lab, answers)

        def job(exercise: Exercise) -> Job:
            uses = lab.all_uses(exercise.id)
            good = {i: answers[i].source for i in uses if verdicts[i].passed}
            bad = tuple(i for i in uses if i not in good)
            answer = answers[exercise.id]
            taken = {name for i in (exercise.id, *uses) for name in lab.exercises[i].names}
            helpers = needed(defined, [answer.source, *good.values()], answer, taken)
            return Job(exercise.id, answer.source, tuple(helpers), good, bad)

        for i, verdict in self._run_in_order(lab, [lab.exercises[i] for i in answers], verdicts, job):
            verdicts[i] = verdict
            done(lab.exercises[i], verdict)
        return verdicts

    def run_all(self, lab: Lab, jobs: Sequence[Job]) -> list[Verdict]:
        """Judge unrelated answers, as many at once as there are workers."""
        free = self._workers(lab, len(jobs))
        with self._threads(free.qsize()) as pool:
            return list(pool.map(lambda job: _run_on_one_of(free, job), jobs))

    def _run_in_order(
        self, lab: Lab, waiting: list[Exercise], verdicts: Mapping[str, Verdict], job: Callable[[Exercise], Job]
    ) -> Iterator[tuple[str, Verdict]]:
        """Yield verdicts as they come; the caller notes each before it asks for the next."""
        free = self._workers(lab, len(waiting))
        running: dict[Future[Verdict], str] = {}
        with self._threads(free.qsize()) as pool:
            while waiting or running:
                for exercise in [e for e in waiting if all(i in verdicts for i in e.uses)]:
                    waiting.remove(exercise)
                    running[pool.submit(_run_on_one_of, free, job(exercise))] = exercise.id
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield running.pop(future), future.result()

    @contextmanager
    def _threads(self, num_workers: int) -> Iterator[ThreadPoolExecutor]:
        """A thread per worker. An interruption (Ctrl-C) kills the workers at once instead of waiting for them."""
        pool = ThreadPoolExecutor(max(1, num_workers))
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise
        pool.shutdown()

    def _workers(self, lab: Lab, num_jobs: int) -> "Queue[Lane]":
        """Workers of this lab, started when first used; those of another lab are closed."""
        if lab.name != self._lab:
            self.close()
            self._lab = lab.name
        while len(self._lanes) < min(self.num_workers, num_jobs):
            self._lanes.append(Lane(self.workbook, lab))
        free: Queue[Lane] = Queue()
        for lane in self._lanes:
            free.put(lane)
        return free


def _run_on_one_of(free: "Queue[Lane]", job: Job) -> Verdict:
    lane = free.get()
    try:
        return lane.run(job)
    except WorkbookError:
        raise
    except Exception as error:  # whatever an answer sent back, it costs that answer alone
        lane.close()
        reason = f"what came back of your code is no verdict ({type(error).__name__})"
        return Verdict(job.exercise, "error", reason)
    finally:
        free.put(lane)


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
