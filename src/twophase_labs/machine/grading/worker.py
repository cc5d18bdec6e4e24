"""The process that grades one lab. It starts two kinds of processes and runs nothing of a learner's itself.

Importing torch and running a lab's setup take seconds; a fork takes milliseconds. So everything is prepared once:

    worker          the lab's checks, oracles and reference; forks a process for each check
      check         one exercise's check; holds stand-ins for the answer and calls it through a channel (remote.py)
    answers         forked before any solution was read: the lab's setup and nothing else (answers.py)
      keeper        ends the answer when told to; the answer cannot see it
        answer      in namespaces of its own (sandbox.py): runs the learner's cells, then what the check asks for

An exercise whose check needs the answer in its own process (`Exercise.checked_in`) is judged in a child of the worker,
in the same namespaces; its verdict says so. Forking is safe here because these processes have one thread and have not
touched CUDA: torch, OpenMP and BLAS are held to one thread (lane.py sets the environment before they load), the
tokenizer's threads are switched off, and `PYTORCH_NVML_BASED_CUDA_CHECK` lets torch count devices without initialising
them. The number of threads goes back with `ready`, and the tests want it to be one.

All channels are sockets: what is behind a file descriptor of another process can be opened if it is a pipe. Whatever
happens to an answer, a verdict is sent on: no result is never a pass. Where there is no fork (macOS forbids it in
practice, Windows lacks it) the job runs in the worker itself, which then ends: `--once`.
"""

import argparse
import gc
import importlib
import json
import os
import secrets
import select
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy.random  # noqa: F401  (judge.py uses it; numpy would load it at its first use, in a process that sees no files)
import torch

from twophase_features.model_store.prepare import cache_home
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.forks import renew_torch_in_forks
from twophase_labs.machine.grading import sandbox
from twophase_labs.machine.grading.answers import USE, ByReference, become_private, run_helpers, silence_the_notebook
from twophase_labs.machine.grading.answers import serve as serve_answers
from twophase_labs.machine.grading.remote import AnswerGone, Peer, Proxy, TrustedRules
from twophase_labs.machine.grading.verdicts import BadVerdictError, shortened, verdict_from
from twophase_labs.machine.guard import Guard
from twophase_labs.machine.judge import Judge, Verdict, by_reference, explain, run_cell, tampered, unavailable
from twophase_labs.machine.lab import Lab, Workbook, WorkbookError
from twophase_labs.machine.limits import GRACE_S, LOAD, limit_this_process, time_limit
from twophase_labs.machine.session import Session, adopt

MAX_RESULT_BYTES = 2**22
END_S = 2  # for an answer's process that has closed its channel to be gone
CELLS_THAT_RUN = (
    "Grading runs the setup cells, this cell, and the functions, imports and plain constants of the others. "
    "Define in this cell what else it needs."
)


def grade_one(job: Mapping[str, Any], judge: Judge, namespace: dict[str, Any]) -> Verdict:
    """Run the answer's cells in the namespace of the setup, then its check, all in this process."""
    exercise = judge.exercises[job["exercise"]]
    lacking = unavailable(exercise)
    if lacking:
        return Verdict(exercise.id, "not_run_here", lacking)
    replaced, restore = judge.guard.replaced, judge.guard.restore
    others = (*job["uses"], *job["fall_back"])
    stand_ins = {name: judge.references[name] for i in job["fall_back"] for name in judge.exercises[i].names}
    names_of = {i: judge.exercises[i].names for i in (*others, exercise.id)}
    try:
        with time_limit(exercise.time_limit_s):
            run_helpers(job["helpers"], namespace)
            for used, source in job["uses"].items():
                USE.allow(names_of, namespace, own=used)
                run_cell(source, namespace, f"<exercise {used}>")
            USE.allow(names_of, stand_ins, namespace, own=exercise.id)
            run_cell(job["source"], namespace, f"<exercise {exercise.id}>")
    except BaseException as error:
        restore()
        return Verdict(exercise.id, *explain(error, exercise, judge.references))
    names = replaced()
    if names:
        restore()
        return Verdict(exercise.id, *explain(tampered(names), exercise, judge.references))
    for name in exercise.names:
        if isinstance(namespace.get(name), ByReference):
            return by_reference(exercise)
    verdict = judge.judge(exercise, namespace, fall_back=tuple(job["fall_back"]), seed=job.get("seed"))
    names = replaced()
    return Verdict(exercise.id, *explain(tampered(names), exercise, judge.references)) if names else verdict


def with_scope(verdict: Verdict) -> Verdict:
    """Tell a learner whose name is unknown here, though it was known in the notebook, which cells ran."""
    if "NameError" not in verdict.reason:
        return verdict
    return replace(verdict, details=(*verdict.details, CELLS_THAT_RUN))


def check_from_outside(job: Mapping[str, Any], lab: Lab, judge: Judge, channel: socket.socket) -> Verdict | None:
    """Have the answer's process run its cells, then check it by calls. None if that process is gone."""
    exercise = judge.exercises[job["exercise"]]
    lacking = unavailable(exercise)
    if lacking:
        return Verdict(exercise.id, "not_run_here", lacking)
    peer = Peer(channel, TrustedRules(lab.package.partition(".")[0]))
    try:
        begun = peer.ask("begin", _told(job, lab, exercise))
        namespace = _namespace(begun, exercise)
    except AnswerGone:
        return None
    except BaseException as error:
        return Verdict(exercise.id, *explain(error, exercise, judge.references))
    if namespace is None:
        return by_reference(exercise)
    judge.on_case = lambda seed: peer.ask("seed", seed)
    judge.guard = Guard.of_nothing()
    verdict = judge.judge(exercise, namespace, fall_back=tuple(job["fall_back"]), seed=job.get("seed"))
    if peer.is_gone:
        return None
    # Stopped while it waited: the answer's own process did not heed its limit.
    return explain_timeout(exercise) if peer.is_broken else verdict


def _told(job: Mapping[str, Any], lab: Lab, exercise: Exercise) -> dict[str, Any]:
    """What the answer's process needs to know: sources and names."""
    used = lab.all_uses(exercise.id)
    behind = {i for other in job["fall_back"] for i in (other, *lab.all_uses(other))}
    return {
        "exercise": exercise.id,
        "names": list(exercise.names),
        "time_limit_s": exercise.time_limit_s,
        "source": job["source"],
        "helpers": list(job["helpers"]),
        "uses": dict(job["uses"]),
        "names_of": {other: list(lab.exercise(other).names) for other in (*used, exercise.id)},
        "stand_ins": {
            other: (lab.templates[other].filled(), list(lab.exercise(other).names)) for other in used if other in behind
        },
    }


def _namespace(begun: Any, exercise: Exercise) -> dict[str, Any] | None:
    """The names of the exercise, with what stands for them here; None if one of them was asked of the reference.

    Raises:
        AnswerGone: the answer's process did not say.
    """
    try:
        values, blanks = begun["values"], begun["blanks"]
        namespace = {name: values[name] for name in exercise.names if name in values}
        for name, value in namespace.items():
            if isinstance(value, Proxy):
                vars(value)["_blanks"] = {number for number in blanks.get(name, ()) if type(number) is int}
        return None if begun["by_reference"] else namespace
    except (TypeError, KeyError) as error:
        raise AnswerGone("the answer's process did not say what it has") from error


@dataclass(frozen=True)
class Answers:
    """This end of the process that forks answers."""

    requests: socket.socket

    def start(self, folder: str, memory_gib: int | float | None) -> tuple[socket.socket, socket.socket]:
        """Start a process for an answer: the channel to it, and the one that ends it by closing."""
        channel, its_channel = socket.socketpair()
        control, its_control = socket.socketpair()
        with its_channel, its_control:
            message = json.dumps({"folder": folder, "memory_gib": memory_gib}).encode()
            socket.send_fds(self.requests, [message], [its_channel.fileno(), its_control.fileno()])
        return channel, control


class Worker:
    """One lab, ready to judge. Only `main` makes one."""

    def __init__(self, lab: Lab, main: ModuleType, answers: Answers | None, isolates: bool, world: Any) -> None:
        self.exercises = lab.exercises
        self.lab = lab
        self.namespace = vars(main)
        self._answers, self._world = answers, world if isolates else None
        session = Session(lab, Path(tempfile.gettempdir()), Guard(lab.package))
        adopt(session)
        self.judge = session.judge
        tests = [test for exercise in lab.exercises.values() for test in exercise.checks]
        questions = [exercise.question for exercise in lab.exercises.values() if exercise.question]
        session.judge.guard.watch(
            session, session.judge, session.references, session.judge.num_blanks, lab.exercises,
            *lab.exercises.values(), *tests, *questions,
        )  # fmt: skip

    def run(self, job: Mapping[str, Any]) -> Verdict:
        """Judge in processes of its own, and wait for them no longer than the exercise allows."""
        exercise = self.exercises[job["exercise"]]
        with tempfile.TemporaryDirectory(prefix="twophase-grade-", ignore_cleanup_errors=True) as folder:
            inside = "/tmp" if self._world else folder
            if exercise.is_checked_outside:
                return replace(self._from_outside(job, exercise, inside), checked_in="grader")
            return replace(self._inside(job, exercise, inside), checked_in="answer")

    def _from_outside(self, job: Mapping[str, Any], exercise: Exercise, folder: str) -> Verdict:
        assert self._answers is not None
        channel, control = self._answers.start(folder, _memory_gib(exercise))
        mine, its = socket.socketpair()
        checker = os.fork()
        if checker == 0:
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (mine, control):
                    other.close()
                os.chdir(tempfile.gettempdir())
                limit_this_process(_memory_gib(exercise))
                verdict = check_from_outside(job, self.lab, self.judge, channel)
                its.sendall(json.dumps(verdict and shortened(with_scope(verdict))).encode() + b"\n")
                os._exit(0)
            finally:
                os._exit(70)
        channel.close()
        its.close()
        with mine, control:
            line = read_line(mine, time.monotonic() + LOAD * exercise.time_limit_s + GRACE_S)
            _kill(checker)
            if line != b"null\n":
                return self._verdict(exercise, line, 0)
            try:
                status, _ = sandbox.read_status(control, END_S)
            except TimeoutError:  # it closed its channel, or it was the check that could wait no longer
                return explain_timeout(exercise)
            return explain_death(exercise, status)

    def _inside(self, job: Mapping[str, Any], exercise: Exercise, folder: str) -> Verdict:
        mine, its = socket.socketpair()
        control, its_control = socket.socketpair()
        # An answer can write to every descriptor it has; only `run` can say this.
        proof = secrets.token_hex(16).encode()

        def run() -> None:
            # Taken before any answer runs, so that replacing them changes nothing here.
            send, leave, dumps = its.sendall, os._exit, json.dumps
            become_private(folder, _memory_gib(exercise))
            verdict = shortened(with_scope(grade_one(job, self.judge, self.namespace)))
            send(proof + dumps(verdict).encode() + b"\n")
            leave(0)

        sandbox.spawn(self._world, run, its_control, keep=[its.fileno()])
        its.close()
        with mine, control:
            line = read_line(mine, time.monotonic() + LOAD * exercise.time_limit_s + GRACE_S)
            if line is None:
                return explain_timeout(exercise)
            if not line.startswith(proof) or not line.endswith(b"\n"):
                return explain_death(exercise, _status(control))
            return self._verdict(exercise, line.removeprefix(proof), 0)

    def _verdict(self, exercise: Exercise, line: bytes | None, status: int) -> Verdict:
        if line is None:
            return explain_timeout(exercise)
        try:
            return verdict_from(json.loads(line), exercise.id)
        except (ValueError, RecursionError, BadVerdictError):
            return explain_death(exercise, status)


def _status(control: socket.socket) -> int:
    try:
        return sandbox.read_status(control, END_S)[0]
    except TimeoutError:
        return 0


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def _memory_gib(exercise: Exercise) -> int | float | None:
    """No limit where the answer may use CUDA, which reserves far more address space than it uses."""
    uses_cuda = not {"gpu", "triton"}.isdisjoint(exercise.needs) and torch.cuda.device_count() > 0
    return None if uses_cuda else exercise.memory_limit_gib


def read_line(channel: socket.socket, deadline: float) -> bytes | None:
    """All up to the first newline or the end; None if the deadline comes first."""
    read = b""
    while not read.endswith(b"\n") and len(read) < MAX_RESULT_BYTES:
        ready, _, _ = select.select([channel], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        more = channel.recv(65_536)
        if not more:
            break
        read += more
    return read


def explain_timeout(exercise: Exercise) -> Verdict:
    reason = (
        f"still running after {exercise.time_limit_s:g} s of computing, or {LOAD} times that by the clock, and killed"
    )
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
    renew_torch_in_forks()
    main = ModuleType("__main__")
    sys.modules["__main__"] = main  # dataclasses and pickle look up where a class was defined
    # The setup comes with the first message, since the lab's source has the solutions beside it.
    run_setup_cells(json.loads(jobs.readline())["setup"], vars(main), args.lab)
    silence_the_notebook(vars(main))
    workbook, world = Workbook(args.root, args.package), world_of(args.root, args.package)
    isolates, isolation, answers = False, sandbox.PROCESS_ONLY, None
    if not args.once:
        sandbox.hide_memory()
        isolates, isolation = sandbox.what_is_allowed(world)
        answers = fork_answers(vars(main), world if isolates else None, (jobs.fileno(), channel))
    worker = Worker(workbook.lab(args.lab), main, answers, isolates, world)
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    if not args.once:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers report the end themselves
    _send(channel, {"ready": True, "threads": _num_threads(), "isolation": isolation})
    for line in jobs:
        job = json.loads(line)
        nonce = job.pop("nonce")
        if args.once:
            limit_this_process(_memory_gib(worker.exercises[job["exercise"]]))
            verdict = replace(with_scope(grade_one(job, worker.judge, worker.namespace)), checked_in="answer")
        else:
            verdict = worker.run(job)
        _send(channel, {"nonce": nonce, "verdict": shortened(verdict)})


def run_setup_cells(sources: list[str], namespace: dict[str, Any], number: str) -> None:
    for cell, source in enumerate(sources, start=1):
        try:
            run_cell(source, namespace, f"<setup {cell}>")
        except Exception as error:
            raise WorkbookError(f"lab {number}, <setup {cell}>: the workbook's own cell raised {error!r}") from error


def fork_answers(namespace: dict[str, Any], world: sandbox.World | None, private: tuple[int, ...]) -> Answers:
    """The process that forks answers, from before this one reads any solution. `private` is what it must not have."""
    mine, its = socket.socketpair()
    if os.fork() == 0:
        try:
            for fd in (*private, mine.fileno()):
                os.close(fd)
            serve_answers(its, namespace, world)
        finally:
            os._exit(70)
    its.close()
    return Answers(mine)


def world_of(root: Path, package: str) -> sandbox.World:
    """What an answer may read: Python, the project's code, the model; neither solutions nor notebooks."""
    hidden = [root / name for name in ("labsolutions", "labs", ".git", "tests")]
    for base in _folders_of("twophase_labs") + _folders_of(package):
        hidden += [*base.glob("*/exercises"), *base.glob("*/answers_*.py")]
        hidden += [answers.parent / "__pycache__" for answers in base.glob("*/answers_*.py")]
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


def _send(channel: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]


if __name__ == "__main__":
    main()
