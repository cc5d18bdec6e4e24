"""A contender's process: started with its own interpreter, asked for runs, ended when it fails."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twophase.core.errors import TwophaseError

ANSWER_S = 900  # for a model to load, or for a run: what takes longer hangs
LAST_WORDS_S = 10  # between the end of its answers and its own
CHILD = Path(__file__).with_name("child.py")
# Ours, set when twophase was imported; others have their own idea of how long a thread should spin.
NOT_FOR_PEERS = ("GOMP_SPINCOUNT", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


class PeerError(TwophaseError):
    """'not run: ...' of a contender that cannot take part here, 'failed: ...' of one that took part and broke."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a contender.

    Attributes:
        adapter: Which file beside `child` knows the engine, such as 'with_vllm'.
        settings: What its `Engine` gets.
        environment: Variables on top of this process's own.
    """

    python: str
    adapter: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)


class PeerProcess:
    """A contender that has loaded its model and stays loaded between runs. Close it, or its memory stays taken.

    Attributes:
        versions: Package -> version.
    """

    def __init__(self, launch: Launch) -> None:
        """Start it, and wait until the model is loaded.

        Raises:
            PeerError: There is no such interpreter, the engine is not installed there, or could not load the model.
        """
        # Standard error: a pipe that nobody reads would fill up.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        unwanted = () if launch.python == sys.executable else NOT_FOR_PEERS
        environment = {name: value for name, value in os.environ.items() if name not in unwanted}
        try:
            self._process = subprocess.Popen(
                [launch.python, str(CHILD), launch.adapter, json.dumps(dict(launch.settings))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=environment | dict(launch.environment),
                encoding="utf-8",
                start_new_session=True,  # it ends with its own children, whatever it starts
            )
        except OSError as error:
            self._said.close()
            raise PeerError(f"not run: {launch.python} cannot be started: {error.strerror}") from error
        self.versions: dict[str, str] = self._answer("loading the model")["versions"]

    def run(self, prompts: tuple[tuple[int, ...], ...], output_lens: tuple[int, ...]) -> dict[str, Any]:
        """One run; the answer as `child` describes it.

        Raises:
            PeerError: It died or failed. It is closed then.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead, and its last words are still to be read
            print(json.dumps({"prompts": prompts, "output_lens": output_lens}), file=self._process.stdin, flush=True)
        return self._answer("a run")

    def close(self) -> None:
        """End it, at once. Does nothing the second time."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def _answer(self, doing: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        try:
            if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
                self.close()
                raise PeerError(f"failed: no answer within {ANSWER_S:g} s of {doing}")
            line = self._process.stdout.readline()
            answer = json.loads(line) if line else {"error": self._last_words()}
        except json.JSONDecodeError:
            answer = {"error": f"it answered {line.strip()[:80]!r}"}
        except BaseException:  # Ctrl-C: it is in a session of its own, and hears of it only so
            self.close()
            raise
        if "missing" in answer or "error" in answer:
            self.close()
            if "missing" in answer:
                raise PeerError(f"not run: its interpreter cannot import it: {answer['missing']}")
            raise PeerError(f"failed: {doing}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        """Of a process that has closed its standard output: it is ending, or as good as dead."""
        try:
            status: int | str = self._process.wait(LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            status = "unknown"
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"it ended with status {status}" + (f", saying {said[-1][:200]!r}" if said else "")
