"""A server in a process of its own: started, waited for, looked at from outside, and stopped."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import httpx

from twophase.core.errors import TwophaseError

START_LIMIT_S = 180.0  # to import everything and load a model, on a busy machine
POLL_S = 0.05


class ServerProcessError(TwophaseError):
    """A server that does not start, or does not stop; carries what it said last."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What the system knows of a process.

    Attributes:
        num_files: Open file descriptors, sockets among them.
    """

    resident_bytes: int
    num_threads: int
    num_files: int


@final
class ServerProcess:
    """`python -m MODULE ARGUMENTS --port PORT` on 127.0.0.1; what it prints goes into `log`.

    Args:
        environment: Changes to this process's.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], port: int, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, "--host", "127.0.0.1", "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
            )

    async def ready(self, limit_s: float | int = START_LIMIT_S) -> None:
        """Wait until /ready says so.

        Raises:
            ServerProcessError: It ended, or took longer.
        """
        deadline_s = time.monotonic() + limit_s
        async with httpx.AsyncClient(trust_env=False) as http:
            while time.monotonic() < deadline_s:
                if self._process.poll() is not None:
                    raise ServerProcessError(f"the server ended with {self._process.returncode}:\n{self.last_words()}")
                try:
                    if (await http.get(f"{self.url}/ready", timeout=10)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(POLL_S)
        raise ServerProcessError(f"the server was not ready after {limit_s:g} s:\n{self.last_words()}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self, limit_s: float | int) -> int | None:
        """Its exit status; None if it still runs after so long."""
        try:
            return await asyncio.to_thread(self._process.wait, limit_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """At once, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    async def stop(self, limit_s: float | int = 60) -> int | None:
        """By SIGTERM; kills what does not follow it, and returns None then."""
        if self._process.poll() is None:
            self.signal(signal.SIGTERM)
        status = await self.ended(limit_s)
        self.kill()
        return status

    def sample(self) -> Sample | None:
        """What it holds now; None where the system has no /proc, or when it has ended."""
        folder = Path("/proc") / str(self._process.pid)
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            num_files = len(list((folder / "fd").iterdir()))
            return Sample(int(status["VmRSS"].split()[0]) * 1024, int(status["Threads"]), num_files)
        except (OSError, KeyError, ValueError):
            return None

    def last_words(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-2000:].strip()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
