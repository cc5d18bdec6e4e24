"""The process that answers run in. Prepared once per lab, then forked for each exercise.

Importing torch and running a lab's setup take seconds; a fork takes milliseconds. Forking is safe here because the
process has one thread and has not touched CUDA: torch, OpenMP and BLAS are held to one thread (lane.py sets the
environment before they load), the tokenizer's threads are switched off, and `PYTORCH_NVML_BASED_CUDA_CHECK` lets torch
count devices without initialising them. The number of threads goes back with `ready`, and the tests want it to be one.

The child gets a process group, an empty folder and limits of its own; its stdout and stderr go nowhere, its verdict
through a pipe. Whatever happens to it, a verdict is sent on: no result is never a pass. Where there is no fork (macOS
forbids it in practice, Windows lacks it) the same job runs in the process itself, which then ends: `--once`.

This limits accidents. It is no security sandbox: an answer runs with the rights of whoever grades it.
"""

import argparse
import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from twophase.workbook.exercise import Exercise
from twophase.workbook.guard import Guard
from twophase.workbook.judge import Judge, Verdict, explain, run_cell, tampered, unavailable
from twophase.workbook.lab import Workbook
from twophase.workbook.limits import GRACE_S, limit_this_process, time_limit
from twophase.workbook.session import Session, adopt
from twophase.workbook.solved import run_setup

MAX_RESULT_BYTES = 2**20
CELLS_THAT_RUN = (
    "Grading runs the setup cells, this cell, and the functions, imports and plain constants of the others. "
    "Define in this cell what else it needs."
)


def grade_one(job: Mapping[str, Any], judge: Judge, namespace: dict[str, Any]) -> Verdict:
    """Run the answer's cells in the namespace of the setup, then its check."""
    exercise = judge.exercises[job["exercise"]]
    lacking = unavailable(exercise)
    if lacking:
        return Verdict(exercise.id, "not_run_here", lacking)
    replaced, restore = judge.guard.replaced, judge.guard.restore
    try:
        with time_limit(exercise.time_limit_s):
            _run_helpers(job["helpers"], namespace)
            for used, source in job["uses"].items():
                run_cell(source, namespace, f"<exercise {used}>")
            run_cell(job["source"], namespace, f"<exercise {exercise.id}>")
    except BaseException as error:
        restore()
        return Verdict(exercise.id, *explain(error, exercise, judge.references))
    names = replaced()
    if names:
        restore()
        return Verdict(exercise.id, *explain(tampered(names), exercise, judge.references))
    return judge.judge(exercise, namespace, fall_back=tuple(job["fall_back"]), seed=job.get("seed"))


def with_scope(verdict: Verdict) -> Verdict:
    """Tell a learner whose name is unknown here, though it was known in the notebook, which cells ran."""
    if "NameError" not in verdict.reason:
        return verdict
    return replace(verdict, details=(*verdict.details, CELLS_THAT_RUN))


def _run_helpers(sources: list[str], namespace: dict[str, Any]) -> None:
    for source in sources:
        try:
            run_cell(source, namespace, "<exercise helper>")
        except Exception:
            continue


def run_in_child(job: Mapping[str, Any], judge: Judge, namespace: dict[str, Any], folder: str, out: int) -> None:
    """What the forked child does; never returns."""
    # Taken before any answer runs, so that replacing them changes nothing here.
    write, leave, dumps = os.write, os._exit, json.dumps
    _become_private(judge.exercises[job["exercise"]], folder)
    verdict = with_scope(grade_one(job, judge, namespace))
    write(out, dumps({"nonce": job["nonce"], "verdict": verdict.to_json()}).encode() + b"\n")
    leave(0)


def _become_private(exercise: Exercise, folder: str) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.chdir(folder)
    limit_this_process(_memory_gib(exercise))


def _memory_gib(exercise: Exercise) -> int | float | None:
    """No limit where the answer may use CUDA, which reserves far more address space than it uses."""
    uses_cuda = not {"gpu", "triton"}.isdisjoint(exercise.needs) and torch.cuda.device_count() > 0
    return None if uses_cuda else exercise.memory_limit_gib


class Worker:
    """One lab, ready to judge. Only `main` makes one."""

    def __init__(self, workbook: Workbook, number: str, channel: int) -> None:
        lab = workbook.lab(number)
        self.channel = channel
        self.exercises = lab.exercises
        main = run_setup(lab, "__main__")
        sys.modules["__main__"] = main  # dataclasses and pickle look up where a class was defined
        self.namespace = vars(main)
        session = Session(lab, Path(tempfile.gettempdir()), Guard(lab.package))
        adopt(session)
        self.judge = session.judge

    def fork(self, job: Mapping[str, Any]) -> Verdict:
        """Judge in a child, and wait for it no longer than the exercise allows."""
        exercise = self.exercises[job["exercise"]]
        with tempfile.TemporaryDirectory(prefix="twophase-grade-", ignore_cleanup_errors=True) as folder:
            into, out = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.close(into)
                    os.close(self.channel)
                    run_in_child(job, self.judge, self.namespace, folder, out)
                finally:
                    os._exit(70)
            os.close(out)
            line = read_line(into, time.monotonic() + exercise.time_limit_s + GRACE_S)
            os.close(into)
            if line is None:
                os.kill(child, signal.SIGKILL)
            return self._verdict(exercise, job["nonce"], line, _end(child))

    def _verdict(self, exercise: Exercise, nonce: str, line: bytes | None, status: int) -> Verdict:
        if line is None:
            return explain_timeout(exercise)
        try:
            result = json.loads(line)
            if result["nonce"] == nonce and result["verdict"]["exercise"] == exercise.id:
                return Verdict.from_json(result["verdict"])
        except (ValueError, KeyError, TypeError):
            pass
        return explain_death(exercise, status)


def read_line(fd: int, deadline: float) -> bytes | None:
    """All up to the first newline or the end; None if the deadline comes first."""
    read = b""
    while not read.endswith(b"\n") and len(read) < MAX_RESULT_BYTES:
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        piece = os.read(fd, 65536)
        if not piece:
            break
        read += piece
    return read


def _end(child: int) -> int:
    """Kill the child's whole group, itself included if it still runs, and return its wait status."""
    deadline = time.monotonic() + 0.5
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < deadline:
        time.sleep(0.002)
    # Not yet reaped, so that its number can mean nobody else.
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return os.waitpid(child, 0)[1]


def explain_timeout(exercise: Exercise) -> Verdict:
    reason = f"still running after {exercise.time_limit_s:g} s, and killed"
    return Verdict(exercise.id, "timeout", reason, ("Look for a loop that never ends.",))


def explain_death(exercise: Exercise, status: int) -> Verdict:
    """Of a child that ended without a verdict."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGSEGV:
            reason = "your code crashed Python (segmentation fault)"
            return Verdict(exercise.id, "error", reason, ("Recursion without end can do that, and ctypes.",))
        reason = f"your code's process was killed ({signal.Signals(number).name})"
        return Verdict(exercise.id, "error", reason, ("It may have wanted too much memory.",))
    reason = "your code ended its process before it could be judged"
    details = (f"It ended with status {os.waitstatus_to_exitcode(status)}. Look for os._exit.",)
    return Verdict(exercise.id, "error", reason, details)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("package")
    parser.add_argument("lab")
    parser.add_argument("--once", action="store_true", help="judge one job in this very process")
    args = parser.parse_args(argv)
    # What was stdout becomes private; prints of answers go nowhere.
    jobs, channel = os.fdopen(os.dup(0), encoding="utf-8"), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    torch.set_num_threads(1)
    if torch.cuda.device_count() == 0:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    worker = Worker(Workbook(args.root, args.package), args.lab, channel)
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    _send(channel, {"ready": True, "threads": _num_threads()})
    for line in jobs:
        job = json.loads(line)
        if args.once:
            limit_this_process(_memory_gib(worker.exercises[job["exercise"]]))
        verdict = with_scope(grade_one(job, worker.judge, worker.namespace)) if args.once else worker.fork(job)
        _send(channel, {"nonce": job["nonce"], "verdict": verdict.to_json()})


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1


def _send(channel: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]


if __name__ == "__main__":
    main()
