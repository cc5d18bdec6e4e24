"""A server in a process of its own: started, waited for, looked at from outside, and stopped."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import httpx

START_LIMIT_S = 180.0  # to import everything and load a model, on a busy machine
POLL_S = 0.05


class Sample(NamedTuple):
    num_threads: int
    num_files: int  # open descriptors, sockets among them


class ServerProcess:
    """`python -m MODULE ARGUMENTS --port PORT` on 127.0.0.1; what it prints goes into `log`."""

    def __init__(self, module: str, arguments: list[str], port: int, log: Path, environment: dict[str, str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        command = [sys.executable, "-m", module, *arguments, "--host", "127.0.0.1", "--port", str(port)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **environment})

    async def ready(self) -> None:
        """Wait until /ready says so."""
        deadline_s = time.monotonic() + START_LIMIT_S
        async with httpx.AsyncClient(trust_env=False) as http:
            while time.monotonic() < deadline_s:
                assert self._process.poll() is None, self._log.read_text(errors="replace")[-2000:]
                try:
                    if (await http.get(f"{self.url}/ready", timeout=10)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(POLL_S)
        raise AssertionError(f"not ready after {START_LIMIT_S:g} s")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def ended(self, limit_s: float) -> int | None:
        """Its exit status; None if it still runs after so long."""
        try:
            return await asyncio.to_thread(self._process.wait, limit_s)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    async def stop(self, limit_s: float) -> int | None:
        """By SIGTERM; kills what does not follow it, and returns None then."""
        self.signal(signal.SIGTERM)
        status = await self.ended(limit_s)
        self.kill()
        return status

    def sample(self) -> Sample | None:
        """What it holds now; None where the system has no /proc, or when it has ended."""
        folder = Path("/proc") / str(self._process.pid)
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            return Sample(int(status["Threads"]), len(list((folder / "fd").iterdir())))
        except (OSError, KeyError):
            return None


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
