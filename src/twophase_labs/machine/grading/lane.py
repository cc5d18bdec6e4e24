"""The grader's end of a worker: starts it, hands it jobs, and kills it when it does not answer."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from twophase_labs.machine.grading.run_one import clock_limit_s, from_line, too_slow
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.lab import Lab, Workbook, WorkbookError

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
        aliases: Such as give an exercise's function another name, which run once that has its own.
        uses: Cells of exercises this one calls, by id: those that passed.
        fall_back: Ids of those that did not; the reference stands in.
        seed: Of the random inputs; None draws one.
        share_s: Of the time for a notebook, by the clock; None where that has no limit.
    """

    exercise: str
    source: str
    helpers: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    uses: Mapping[str, str] = field(default_factory=dict)
    fall_back: tuple[str, ...] = ()
    seed: int | None = None
    share_s: int | float | None = None


class Lane:
    """One worker, one job at a time, used by a single thread. `close` kills whatever still runs; `stop`, for good.

    Attributes:
        num_threads: Of the worker when it was ready.
        isolation: What answers of this worker ran in, once it is ready (sandbox.py).
    """

    def __init__(self, workbook: Workbook, lab: Lab, *, fork: bool = sys.platform == "linux") -> None:
        self._workbook, self.lab, self._fork = workbook, lab, fork
        self._process: subprocess.Popen[bytes] | None = None
        self.num_threads, self.isolation = 0, ""
        self.is_stopped = False

    def run(self, job: Job) -> Verdict:
        """The verdict, whatever happens; raises only if the lab itself cannot be set up.

        Raises:
            WorkbookError: with what the worker said when it died before being ready.
        """
        exercise = self.lab.exercise(job.exercise)
        self.start()
        patience = clock_limit_s(exercise, job.share_s) + (FORK_MARGIN_S if self._fork else 0)
        line, is_late = self._ask(asdict(job), patience)
        if is_late or not line or not self._fork:
            self.close()
        if is_late:
            return too_slow(exercise, job.share_s)
        try:
            return from_line(line, exercise.id)
        except ValueError:
            return Verdict(exercise.id, "error", "your code ended its process before it could be judged")

    def start(self) -> None:
        """Wait until the worker is ready, if there is none.

        Raises:
            WorkbookError: as `run`.
        """
        if self.is_stopped:
            raise WorkbookError("grading was interrupted")
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        path = os.pathsep.join(entry for entry in sys.path if entry)
        environment = {**clean_environment(), **ENVIRONMENT, **self._workbook.environment(), "PYTHONPATH": path}
        command = [sys.executable, "-P", "-m", "twophase_labs.machine.grading.worker"]
        command += [str(self._workbook.root.resolve()), self._workbook.package, self.lab.number]
        with tempfile.TemporaryFile() as said:
            self._process = subprocess.Popen(
                command + ["--once"] * (not self._fork), env=environment, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
            )  # fmt: skip
            line, _ = self._ask(None, START_S) if not self.is_stopped else (b"", False)
            if not line:
                self.close()
                said.seek(0)
                last = said.read().decode(errors="replace").strip().split("\n")[-1]
                raise WorkbookError(f"lab {self.lab.number} cannot be set up for grading: {last or 'no reason given'}")
        ready = json.loads(line)
        self.num_threads, self.isolation = ready["threads"], ready["isolation"]

    def _ask(self, message: dict[str, Any] | None, seconds: int | float) -> tuple[bytes, bool]:
        """The worker's next line, empty if it has ended, and whether it had to be killed for saying nothing so long."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def kill() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            if message is not None:
                process.stdin.write(json.dumps(message).encode() + b"\n")
                process.stdin.flush()
            return process.stdout.readline(), late.is_set()
        except OSError:  # it has ended
            return b"", late.is_set()
        finally:
            timer.cancel()

    def stop(self) -> None:
        self.is_stopped = True
        self.close()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
            with contextlib.suppress(OSError), process:  # closes its pipes; what was still to be sent goes nowhere
                return


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
