"""One answer, in the process it runs in: its cells, then its check, beside the lab's setup and reference.

What an answer does here it can do to its own verdict alone; see worker.py for what keeps it from all else.
"""

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, get_args

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.judge import (
    Judge,
    Verdict,
    VerdictName,
    by_reference,
    explain,
    run_cell,
    unavailable,
)
from twophase_labs.machine.lab import WorkbookError
from twophase_labs.machine.limits import GRACE_S, LOAD, time_limit

NOTEBOOKS_CALLS = ("check", "hint", "measured", "reference", "reveal", "use")
MAX_CHARS, MAX_LINES = 20_000, 200  # of a text of a verdict; of a list of them
CELLS_THAT_RUN = (
    "Grading runs the setup cells, this cell, and the functions, imports and plain constants of the others. "
    "Define in this cell what else it needs."
)


def judged(job: Mapping[str, Any], judge: Judge, namespace: dict[str, Any]) -> Verdict:
    """Run the answer's cells in the namespace of the setup, then its check. `job` is a lane's Job."""
    verdict = _judged(job, judge, namespace)
    if "NameError" in verdict.reason:  # of a name that was known in the notebook, perhaps
        verdict = replace(verdict, details=(*verdict.details, CELLS_THAT_RUN))
    return verdict


def _judged(job: Mapping[str, Any], judge: Judge, namespace: dict[str, Any]) -> Verdict:
    exercise = judge.exercises[job["exercise"]]
    lacking = unavailable(exercise)
    if lacking:
        return Verdict(exercise.id, "not_run_here", lacking)
    stand_ins = {name: judge.references[name] for i in job["fall_back"] for name in judge.exercises[i].names}
    known = {i: judge.exercises[i].names for i in (*job["uses"], *job["fall_back"], exercise.id)}
    USE.give(namespace, known, lambda: judge.is_judging)
    try:
        with time_limit(exercise.time_limit_s):
            run_definitions(job["helpers"], namespace)
            for used, source in job["uses"].items():
                namespace.update(stand_ins)
                USE.own = used
                run_cell(source, namespace, f"<exercise {used}>")
            namespace.update(stand_ins)
            run_definitions(job["aliases"], namespace)
            USE.own = exercise.id
            run_cell(job["source"], namespace, f"<exercise {exercise.id}>")
    except BaseException as error:
        return Verdict(exercise.id, *explain(error, exercise, judge.references))
    if any(isinstance(namespace.get(name), ByReference) for name in exercise.names):
        return by_reference(exercise)
    return judge.judge(exercise, namespace, fall_back=tuple(job["fall_back"]), seed=job["seed"])


def run_definitions(sources: Sequence[str], namespace: dict[str, Any]) -> None:
    """Definitions from other cells; one that fails is passed over."""
    for source in sources:
        try:
            run_cell(source, namespace, "<exercise helper>")
        except Exception:
            continue


class ByReference:
    """What `reference("1.3")` gives while 1.3 itself, or another exercise, is graded: a mark, and nothing to call."""

    def __init__(self, exercise: str) -> None:
        self._exercise = exercise

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise WorkbookError(f"an answer may not call the reference, here that of {self._exercise}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self()
        raise AssertionError


class Use:
    """What `use` and `reference` are while grading: of what an exercise uses they give what its check will use.

    Of the exercise itself `use` gives what its cell has defined so far, if it has, and `reference` nothing.
    """

    own = ""  # the exercise whose cell runs

    def give(
        self, namespace: Mapping[str, Any], known: Mapping[str, Sequence[str]], is_judging: Callable[[], bool]
    ) -> None:
        """Where names are looked up, and those of each exercise that may be asked for."""
        self._namespace, self._known, self._is_judging = namespace, known, is_judging

    def __call__(self, exercise: Any) -> Any:
        names = self._known.get(exercise, ()) if isinstance(exercise, str) else ()
        found = [self._namespace.get(name) for name in names]
        if self._is_judging() or not names or any(value is None for value in found):
            return ByReference(exercise)
        return tuple(found) if len(found) > 1 else found[0]

    def reference(self, exercise: Any) -> Any:
        return ByReference(exercise) if exercise == self.own else self(exercise)


USE = Use()


def silence_the_notebook(namespace: dict[str, Any]) -> None:
    """While grading, `check` and its kin do nothing, and `use` and `reference` are `USE`."""
    import twophase_labs
    from twophase_labs.machine import session

    for name in NOTEBOOKS_CALLS:
        original = getattr(session, name)
        quiet = {"reference": USE.reference, "use": USE}.get(name, _ignored)
        for place in (vars(session), vars(twophase_labs), namespace):
            if place.get(name) is original or place is not namespace:
                place[name] = quiet


def _ignored(*args: Any, **kwargs: Any) -> None:
    """Checked when it is graded."""


def become_private(folder: str) -> None:
    """Streams that lead nowhere, and a folder of its own."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    os.chdir(folder)
    os.environ.update(TMPDIR=folder, MPLCONFIGDIR=folder, TRITON_CACHE_DIR=folder)
    tempfile.tempdir = None


def clock_limit_s(exercise: Exercise, share_s: int | float | None) -> int | float:
    """Seconds after which an answer is killed: its exercise's, or its share of a whole notebook's."""
    return min(LOAD * exercise.time_limit_s + GRACE_S, share_s or math.inf)


def too_slow(exercise: Exercise, share_s: int | float | None) -> Verdict:
    """Of an answer that was killed then."""
    limit_s, own_s = clock_limit_s(exercise, share_s), LOAD * exercise.time_limit_s
    own = f"{exercise.time_limit_s:g} s of computing, or {LOAD} times that by the clock"
    reason = f"still running after {own if limit_s > own_s else f'{limit_s:.0f} s, its share of the time'}, and killed"
    return Verdict(exercise.id, "timeout", reason, ("Look for a loop that never ends.",))


def as_line(verdict: Verdict) -> bytes:
    """The verdict as JSON in a line, with its texts cut: what a learner's code said may be of any length."""
    cut = {
        name: value[:MAX_CHARS] if isinstance(value, str) else [line[:MAX_CHARS] for line in value[:MAX_LINES]]
        for name, value in vars(verdict).items()
        if name != "picture"
    }
    return json.dumps({**cut, "picture": verdict.picture}).encode() + b"\n"


def from_line(line: bytes, exercise: str) -> Verdict:
    """The verdict on `exercise` in such a line.

    Raises:
        ValueError: it is none.
    """
    try:
        told = json.loads(line).items()
        fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in told}
        verdict = Verdict(**fields)
        texts = [part for value in vars(verdict).values() for part in (value if isinstance(value, tuple) else [value])]
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError("no verdict") from error
    if verdict.verdict not in get_args(VerdictName) or not all(isinstance(text, str) for text in texts):
        raise ValueError("no verdict")
    return replace(verdict, exercise=exercise)
