"""The process that grades one lab: prepared once, forked for each answer. It runs nothing of a learner's itself.

Importing torch and running a lab's setup take seconds; a fork takes milliseconds.

    worker       the lab's setup, reference and checks
      keeper     waits for the answer, no longer than its time, then kills it and all that it started (sandbox.py)
        answer   in namespaces of its own: runs the learner's cells and the check, and tells the verdict (run_one.py)

A verdict counts if it comes with a number that the answer was not told; no verdict is never a pass. Forking is safe
here because the worker has one thread and has not touched CUDA: torch, OpenMP and BLAS are held to one thread (lane.py
sets the environment before they load), the tokenizer's threads are switched off, and `PYTORCH_NVML_BASED_CUDA_CHECK`
lets torch count devices without initialising them. The number of threads goes back with `ready`, and the tests want it
to be one. Where there is no fork (macOS forbids it in practice, Windows lacks it) the job runs in the worker itself,
which then ends: `--once`.
"""

import argparse
import gc
import importlib
import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from twophase_features.model_store.prepare import cache_home
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.grading import sandbox
from twophase_labs.machine.grading.run_one import (
    as_line,
    become_private,
    clock_limit_s,
    from_line,
    judged,
    silence_the_notebook,
    too_slow,
)
from twophase_labs.machine.judge import Judge, Verdict
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.limits import limit_this_process
from twophase_labs.machine.session import Session, adopt
from twophase_labs.machine.solved import run_setup_in


def renew_torch_in_forks() -> None:
    """Let every later fork of this process make torch's thread pool anew while it has one thread.

    The pool of its parent is of no use to a fork, and torch replaces it at the first parallel operation, without a
    lock: of several threads that come first, as in transformers' loading of weights, one can find no pool at all
    ('Invalid thread pool!').
    """
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(torch.get_num_threads()))


def judged_in_a_fork(
    job: Mapping[str, Any], judge: Judge, namespace: dict[str, Any], world: sandbox.World | None
) -> Verdict:
    """Judge in a process of its own, and wait for it no longer than the exercise allows."""
    exercise = judge.exercises[job["exercise"]]
    proof = secrets.token_hex(16).encode()
    seconds = clock_limit_s(exercise, job["share_s"])

    def run(descriptor: int, folder: str) -> None:
        me = os.getpid()
        become_private(folder)
        limit_this_process(_memory_gib(exercise), seconds)
        line = proof + as_line(judged(job, judge, namespace))
        if os.getpid() != me:  # a fork of the answer's that came back from it
            return
        while line:
            line = line[os.write(descriptor, line) :]

    ended = sandbox.call(world, run, seconds)
    if ended.status is None:
        return too_slow(exercise, job["share_s"])
    try:
        if not ended.said.startswith(proof):
            raise ValueError("no verdict")
        return from_line(ended.said.removeprefix(proof), exercise.id)
    except ValueError:
        return explain_death(exercise, ended)


def _memory_gib(exercise: Exercise) -> int | float | None:
    """No limit where the answer may use CUDA, which reserves far more address space than it uses."""
    uses_cuda = not {"gpu", "triton"}.isdisjoint(exercise.needs) and torch.cuda.device_count() > 0
    return None if uses_cuda else exercise.memory_limit_gib


def explain_death(exercise: Exercise, ended: sandbox.Ended) -> Verdict:
    """Of an answer that ended without a verdict."""
    status = ended.status or 0
    if ended.said:
        reason, why = "your code wrote to the grader's own channel", "Write to files that you opened."
    elif os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV:
        reason = "your code crashed Python (segmentation fault)"
        why = "Recursion without end can do that, and ctypes."
    elif os.WIFSIGNALED(status):
        reason = f"your code's process was killed ({signal.Signals(os.WTERMSIG(status)).name})"
        why = "It may have wanted too much memory, or computed in too many processes or threads."
    else:
        reason = "your code ended its process before it could be judged"
        why = f"It ended with status {os.waitstatus_to_exitcode(status)}. Look for os._exit."
    return Verdict(exercise.id, "error", reason, (why,))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("package")
    parser.add_argument("lab")
    parser.add_argument("--once", action="store_true", help="judge one job in this very process")
    args = parser.parse_args(argv)
    # What was stdout becomes private; prints of answers go nowhere.
    jobs, channel = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    torch.set_num_threads(1)
    renew_torch_in_forks()
    sandbox.hide_memory()
    main = ModuleType("__main__")
    sys.modules["__main__"] = main  # dataclasses and pickle look up where a class was defined
    workbook = Workbook(args.root, args.package)
    lab = workbook.lab(args.lab)
    run_setup_in(lab, vars(main))
    silence_the_notebook(vars(main))
    session = Session(lab, Path(tempfile.gettempdir()))
    adopt(session)
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    world = None if args.once else world_of(args.root, args.package)
    isolation = sandbox.LIMITS_ONLY if world is None else sandbox.isolation_of(world)
    _send(channel, {"ready": True, "threads": _num_threads(), "isolation": isolation})
    for line in jobs:
        job = json.loads(line)
        if args.once:
            limit_this_process(_memory_gib(lab.exercise(job["exercise"])))
            verdict = judged(job, session.judge, vars(main))
        else:
            isolated = world if isolation == sandbox.NAMESPACES else None
            verdict = judged_in_a_fork(job, session.judge, vars(main), isolated)
        channel.write(as_line(verdict))


def world_of(root: Path, package: str) -> sandbox.World:
    """What an answer may read: Python, the project's code, the model; neither solutions nor notebooks."""
    hidden = [root / name for name in ("labsolutions", "labs", ".git", "tests")]
    for base in _folders_of("twophase_labs") + _folders_of(package):
        hidden += [*base.glob("*/exercises"), *base.glob("*/answers_*.py")]
    shown = (*sandbox.importable(), cache_home(), *_compiler(root))
    return sandbox.World(shown, tuple(path.resolve() for path in hidden))


def _compiler(root: Path) -> Iterator[Path]:
    """Where a C compiler for kernels is installed, /opt/gcc-13, unless a home or this repository is there as well."""
    for program in shlex.split(os.environ.get("CC", ""))[:1] or ("gcc", "clang", "cc"):
        if found := shutil.which(program):
            folder = Path(found).resolve().parents[1]
            if not any(private.is_relative_to(folder) for private in (Path.home(), root.resolve())):
                yield folder


def _folders_of(package: str) -> list[Path]:
    return [Path(folder) for folder in importlib.import_module(package).__path__]


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1


def _send(channel: Any, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
