"""Where answers run: a process in which the lab's setup ran and which knows no solution, forked for each answer.

What it forks runs an answer's cells and then does what the check asks of it (remote.py): calls of the answer's
functions, with arguments and results as data. It holds no check, no oracle and no reference but those that stand in
for answers that failed, and it decides nothing.
"""

import gc
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, NoReturn, no_type_check

from twophase_labs.machine.grading import sandbox
from twophase_labs.machine.grading.remote import Peer, Rules
from twophase_labs.machine.judge import run_cell, seed_everything
from twophase_labs.machine.lab import WorkbookError
from twophase_labs.machine.limits import Allowance, OutOfTime, limit_this_process
from twophase_labs.machine.unfilled import blanks_left

MAX_REQUEST_BYTES = 4096
NOTEBOOKS_CALLS = ("check", "hint", "measured", "reference", "reveal", "use")


def serve(requests: socket.socket, namespace: dict[str, Any], world: sandbox.World | None) -> NoReturn:
    """Start an answer's process for each request: a channel to the check, and one to end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers report the end themselves
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    while True:
        message, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 2)
        if not message:
            os._exit(0)
        limits = json.loads(message)
        channel, control = (socket.socket(fileno=fd) for fd in fds)

        def run(limits: Mapping[str, Any] = limits, channel: socket.socket = channel) -> None:
            become_private(limits["folder"], limits["memory_gib"])
            Answer(channel, namespace).serve()
            os._exit(0)

        sandbox.spawn(world, run, control, keep=[channel.fileno()])
        channel.close()


def become_private(folder: str, memory_gib: int | float | None) -> None:
    """Streams that lead nowhere, a folder of its own, limits."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    os.chdir(folder)
    os.environ.update(TMPDIR=folder, MPLCONFIGDIR=folder, TRITON_CACHE_DIR=folder)
    tempfile.tempdir = None
    limit_this_process(memory_gib)


class Answer:
    """One answer, in the process it runs in."""

    def __init__(self, channel: socket.socket, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._peer = Peer(channel, Rules(), {"begin": self._begin, "seed": seed_everything})

    def serve(self) -> None:
        self._peer.serve()

    def _begin(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Run the cells; give the names that the exercise asks for, and which of its blanks are left in each."""
        here, exercise = self._namespace, job["exercise"]
        self._limit_time(job["time_limit_s"])
        run_helpers(job["helpers"], here)
        for used, source in job["uses"].items():
            USE.allow(job["names_of"], here, own=used)
            run_cell(source, here, f"<exercise {used}>")
        stand_ins = _stand_ins(job["stand_ins"], dict(here))
        USE.allow(job["names_of"], stand_ins, here, own=exercise)
        run_cell(job["source"], here, f"<exercise {exercise}>")
        here.update(stand_ins)
        self._limit_time(job["time_limit_s"])
        found = {name: here[name] for name in job["names"] if name in here}
        return {
            "values": {name: None if isinstance(value, ByReference) else value for name, value in found.items()},
            "by_reference": [name for name, value in found.items() if isinstance(value, ByReference)],
            "blanks": {
                name: sorted(blanks_left(value, exercise))
                for name, value in found.items()
                if not isinstance(value, ByReference)
            },
        }

    def _limit_time(self, seconds: float) -> None:
        """Interrupt the learner's code, not this protocol, shortly before the check itself runs out of time."""

        seconds = max(0.9 * seconds, seconds - 0.5)
        allowance = Allowance(seconds)

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self._peer.is_running_code and allowance.left_s() == 0:
                raise OutOfTime

        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)


def run_helpers(sources: list[str], namespace: dict[str, Any]) -> None:
    """Definitions from other cells; one that fails is passed over."""
    for source in sources:
        try:
            run_cell(source, namespace, "<exercise helper>")
        except Exception:
            continue


def _stand_ins(sources: Mapping[str, tuple[str, list[str]]], namespace: dict[str, Any]) -> dict[str, Any]:
    """What the reference's cells define, run in a namespace of their own."""
    found: dict[str, Any] = {}
    for exercise, (source, names) in sources.items():
        run_cell(source, namespace, f"<reference {exercise}>")
        found.update({name: namespace[name] for name in names if name in namespace})
    return found


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

    def __init__(self) -> None:
        self._names_of: Mapping[str, Sequence[str]] = {}
        self._places: tuple[Mapping[str, Any], ...] = ()
        self._own = ""

    def allow(self, names_of: Mapping[str, Sequence[str]], *places: Mapping[str, Any], own: str) -> None:
        """Names by exercise, and where they are looked up, first place first; `own` is the exercise being graded."""
        self._names_of, self._places, self._own = names_of, places, own

    @no_type_check  # a checker's wrapper would stand between these frames
    def __call__(self, exercise: Any) -> Any:
        return self._given(exercise, sys._getframe(1))

    @no_type_check
    def reference(self, exercise: Any) -> Any:
        return ByReference(exercise) if exercise == self._own else self._given(exercise, sys._getframe(1))

    def _given(self, exercise: Any, caller: FrameType) -> Any:
        names = self._names_of.get(exercise, ()) if isinstance(exercise, str) else ()
        if not names or caller.f_code.co_name != "<module>":
            return ByReference(exercise)
        found = [next((place[name] for place in self._places if name in place), None) for name in names]
        if exercise == self._own and any(value is None for value in found):
            return ByReference(exercise)
        return tuple(found) if len(found) > 1 else found[0]


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
