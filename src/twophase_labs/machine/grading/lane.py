"""The grader's end of a worker: starts it, hands it jobs, and kills it when it does not answer."""

import json
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.grading.verdicts import BadVerdictError, verdict_from
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.lab import Lab, Workbook, WorkbookError
from twophase_labs.machine.limits import GRACE_S, LOAD

START_S = 180  # torch, the lab's setup and its reference, on a slow disk
FORK_MARGIN_S = 30  # a forking worker keeps the exercise's limit itself; this long after it, the worker is dead

# One thread each: a process with more cannot be forked safely, and workers share the cores.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "MPLBACKEND": "Agg",
}
# Of the grader's own environment an answer sees only what running needs, and of that nothing that sounds secret.
PASSED_ON = re.compile(
    r"PATH|HOME|USER|LANG|LANGUAGE|TZ|TMPDIR|TEMP|TMP|SYSTEMROOT|LOCALAPPDATA|APPDATA|USERPROFILE|VIRTUAL_ENV|CC"
    r"|(LC|XDG|LD|DYLD|PYTHON|TORCH|TRITON|CUDA|NVIDIA|HIP|ROCR|HF|TRANSFORMERS|TOKENIZERS|TWOPHASE)_?\w*"
)
SECRET = re.compile("TOKEN(?!IZERS)|SECRET|PASSWORD|CREDENTIAL|_KEY|AUTH", re.IGNORECASE)


def clean_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if PASSED_ON.fullmatch(k.upper()) and not SECRET.search(k)}


@dataclass(frozen=True)
class Job:
    """One answer to judge.

    Attributes:
        source: The answer's cell.
        helpers: Definitions from other cells; one that fails is passed over.
        uses: Cells of exercises this one calls, by id: those that passed.
        fall_back: Ids of those that did not; the reference stands in.
        seed: Of the random inputs; None draws one.
    """

    exercise: str
    source: str
    helpers: tuple[str, ...] = ()
    uses: Mapping[str, str] = field(default_factory=dict)
    fall_back: tuple[str, ...] = ()
    seed: int | None = None


class Lane:
    """One worker, one job at a time. Used by a single thread; `close` kills whatever still runs.

    Attributes:
        isolation: What answers of this worker ran in, once it is ready: sandbox.NAMESPACES, or 'process only' and why.
    """

    def __init__(self, workbook: Workbook, lab: Lab, *, fork: bool = sys.platform == "linux") -> None:
        self._workbook, self._lab, self._fork = workbook, lab, fork
        self._process: subprocess.Popen[bytes] | None = None
        self._to_worker: IO[bytes] | None = None
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self.num_threads = 0  # of the worker when it was ready
        self.isolation = ""

    def run(self, job: Job) -> Verdict:
        """The verdict, whatever happens; raises only if the lab itself cannot be set up.

        Whatever is not exactly the answer to this job ends the worker, so that nothing is left of it for the next.

        Raises:
            WorkbookError: with what the worker said when it died before being ready.
        """
        exercise = self._lab.exercise(job.exercise)
        self._start()
        message = {**asdict(job), "nonce": secrets.token_hex(8)}
        patience = LOAD * exercise.time_limit_s + GRACE_S + (FORK_MARGIN_S if self._fork else 0)
        try:
            self._send(message)
            verdict = self._verdict(exercise, message["nonce"], self._receive(patience))
        except (OSError, ValueError, RecursionError, BadVerdictError):
            verdict = None
        if not self._fork or verdict is None or not self._answers.empty():
            self.close()
        return verdict or Verdict(exercise.id, "error", "your code ended its process before it could be judged")

    def _verdict(self, exercise: Exercise, nonce: str, answer: dict[str, Any] | None) -> Verdict:
        """The verdict in the worker's answer to one job.

        Raises:
            BadVerdictError: that is no answer to this job.
        """
        if answer is None:
            self.close()
            limit = f"{exercise.time_limit_s:g} s of computing, or {LOAD} times that by the clock"
            reason = f"still running after {limit}, and killed"
            return Verdict(exercise.id, "timeout", reason, ("Look for a loop that never ends.",))
        if answer.keys() != {"nonce", "verdict"} or answer["nonce"] != nonce:
            raise BadVerdictError("the worker answered something else")
        return verdict_from(answer["verdict"], exercise.id)

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None and self._answers.empty():
            return
        self.close()
        self._answers = queue.Queue()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**clean_environment(), **ENVIRONMENT, **self._workbook.environment(), "PYTHONPATH": path}
        command = [sys.executable, "-P", "-m", "twophase_labs.machine.grading.worker"]
        command += [str(self._workbook.root.resolve()), self._workbook.package, self._lab.number]
        with tempfile.TemporaryFile() as said:
            ready: dict[str, Any] | None = {}
            try:
                self._open(command + ["--once"] * (not self._fork), environment, said)
                self._send({"setup": list(self._lab.setup)})
                ready = self._receive(START_S)
            except (OSError, ValueError, RecursionError):
                ready = {}
            if not ready or not ready.get("ready"):
                self.close()
                said.seek(0)
                last = said.read().decode(errors="replace").strip().split("\n")[-1]
                raise WorkbookError(f"lab {self._lab.number} cannot be set up for grading: {last or 'no reason given'}")
        self.num_threads, self.isolation = ready["threads"], ready["isolation"]

    def _open(self, command: list[str], environment: dict[str, str], said: IO[bytes]) -> None:
        """Start the process. Where there is fork the channel is a socket, which no other process can open as a file."""
        if self._fork:
            mine, its = socket.socketpair()
            with its:
                self._process = subprocess.Popen(
                    command,
                    stdin=its.fileno(),
                    stdout=its.fileno(),
                    stderr=said,
                    env=environment,
                    start_new_session=True,
                )
            from_worker: IO[bytes] = mine.makefile("rb")
            self._to_worker = mine.makefile("wb")
            mine.close()
        else:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=environment,
                start_new_session=True,
            )  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._to_worker, from_worker = self._process.stdin, self._process.stdout
        threading.Thread(target=_pump, args=(from_worker, self._answers), daemon=True).start()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._to_worker is not None
        self._to_worker.write(json.dumps(message).encode() + b"\n")
        self._to_worker.flush()

    def _receive(self, seconds: int | float) -> dict[str, Any] | None:
        """The worker's next message, {} if it has died, None if it says nothing for that long.

        Raises:
            ValueError: it said something that is no message.
        """
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        message = json.loads(line) if line else {}
        if not isinstance(message, dict):
            raise ValueError("a message is a JSON object")
        return message

    def close(self) -> None:
        process, self._process = self._process, None
        to_worker, self._to_worker = self._to_worker, None
        if process is None:
            return
        if process.poll() is None:
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if to_worker is not None:
            try:
                to_worker.close()
            except OSError:  # what was still to be sent has nobody to read it
                return


def _pump(from_worker: IO[bytes], answers: "queue.Queue[bytes | None]") -> None:
    """Lines from the worker into a queue, which unlike a pipe can be waited for with a limit on every system."""
    with from_worker:
        try:
            for line in from_worker:
                answers.put(line)
        except (ValueError, OSError):  # closed meanwhile
            pass
    answers.put(None)
