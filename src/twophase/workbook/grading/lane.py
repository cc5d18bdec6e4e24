"""The grader's end of a worker: starts it, hands it jobs, and kills it when it does not answer."""

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from twophase.workbook.exercise import Exercise
from twophase.workbook.judge import Verdict
from twophase.workbook.lab import Lab, Workbook, WorkbookError
from twophase.workbook.limits import GRACE_S

START_S = 180  # torch, the lab's setup and its reference, on a slow disk
FORK_MARGIN_S = 30  # a forking worker keeps the exercise's limit itself; this long after it, the worker is dead

# One thread each: a process with more cannot be forked safely, and workers share the cores.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "MPLBACKEND": "Agg",
}


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
    """One worker, one job at a time. Used by a single thread; `close` kills whatever still runs."""

    def __init__(self, workbook: Workbook, lab: Lab, *, fork: bool = sys.platform == "linux") -> None:
        self._workbook, self._lab, self._fork = workbook, lab, fork
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self.num_threads = 0  # of the worker when it was ready

    def run(self, job: Job) -> Verdict:
        """The verdict, whatever happens; raises only if the lab itself cannot be set up.

        Raises:
            WorkbookError: with what the worker said when it died before being ready.
        """
        exercise = self._lab.exercise(job.exercise)
        self._start()
        message = {**asdict(job), "nonce": secrets.token_hex(8)}
        patience = exercise.time_limit_s + GRACE_S + (FORK_MARGIN_S if self._fork else 0)
        try:
            self._send(message)
            answer = self._receive(patience)
        except (OSError, ValueError):
            answer = {}
        if not self._fork or not answer:
            self.close()
        return self._verdict(exercise, message["nonce"], answer)

    def _verdict(self, exercise: Exercise, nonce: str, answer: dict[str, Any] | None) -> Verdict:
        if answer is None:
            reason = f"still running after {exercise.time_limit_s:g} s, and killed"
            return Verdict(exercise.id, "timeout", reason, ("Look for a loop that never ends.",))
        if answer.get("nonce") != nonce:
            return Verdict(exercise.id, "error", "your code ended its process before it could be judged")
        return Verdict.from_json(answer["verdict"])

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._answers = queue.Queue()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**os.environ, **ENVIRONMENT, **self._workbook.environment(), "PYTHONPATH": path}
        command = [sys.executable, "-P", "-m", "twophase.workbook.grading.worker"]
        command += [str(self._workbook.root.resolve()), self._workbook.package, self._lab.number]
        with tempfile.TemporaryFile() as said:
            self._process = subprocess.Popen(
                command + ["--once"] * (not self._fork),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=environment,
                start_new_session=True,
            )  # fmt: skip
            threading.Thread(target=_pump, args=(self._process, self._answers), daemon=True).start()
            ready = self._receive(START_S)
            if not ready or not ready.get("ready"):
                self.close()
                said.seek(0)
                last = said.read().decode(errors="replace").strip().split("\n")[-1]
                raise WorkbookError(f"lab {self._lab.number} cannot be set up for grading: {last or 'no reason given'}")
        self.num_threads = ready["threads"]

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _receive(self, seconds: int | float) -> dict[str, Any] | None:
        """The worker's next message, {} if it has died, None if it says nothing for that long."""
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        message = json.loads(line) if line else {}
        return message if isinstance(message, dict) else {}

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was still to be sent has nobody to read it
                    continue


def _pump(process: "subprocess.Popen[bytes]", answers: "queue.Queue[bytes | None]") -> None:
    """Lines from the worker into a queue, which unlike a pipe can be waited for with a limit on every system."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            answers.put(line)
    except ValueError:  # closed meanwhile
        pass
    answers.put(None)
