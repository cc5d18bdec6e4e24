"""Start N processes on this machine, from a script or a notebook, with torchrun's environment, and leave none behind.

Each rank has a process session of its own, so Ctrl-C reaches the caller alone. Each asks the kernel to be killed when
its parent dies: when the caller is killed the ranks end too, stopped ones included. The caller keeps the key-value
store in which the ranks meet, on a port that the system chose.

The threads of all ranks together should not exceed the cores, so each gets its share (OMP_NUM_THREADS).
"""

import ctypes
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from twophase.core.errors import ConfigError, TwophaseError

DEFAULT_TIMEOUT_S = 120.0
SURVIVORS_S = 10.0  # after a rank has failed, the others may live this long to notice and to say so
POLL_S = 0.05
TAIL_CHARACTERS = 2000  # of each rank's output in an error message
STREAMS = ("stdout", "stderr")
PR_SET_PDEATHSIG = 1  # prctl(2)


class LaunchError(TwophaseError):
    """A local process failed; names the first that failed and each process's last output."""


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one rank ended.

    Attributes:
        rank: Which.
        exit_code: 0 is success, and nothing else is; -9: killed by signal 9; -15: most likely by `run_local`, because
            another rank had failed. None: killed by `run_local`, because the time was over.
        stdout, stderr: What it printed; empty where its output was shown instead.
    """

    rank: int
    exit_code: int | None
    stdout: str
    stderr: str


def run_local(
    target: str | Path,
    world_size: int,
    args: Sequence[str] = (),
    timeout_s: int | float = DEFAULT_TIMEOUT_S,
    *,
    threads_per_rank: int | None = None,
    env: Mapping[str, str] | None = None,
    show_ranks: Sequence[int] = (),
    check: bool = True,
) -> tuple[RankResult, ...]:
    """Run `target` in `world_size` processes on this machine and wait for them.

    When a rank fails, the others get SIGTERM and are killed if they do not end; on a timeout, on Ctrl-C and when this
    process dies, all are killed. None of them runs any more when this function has returned or raised.

    Args:
        target: A module ('package.module') or a script (a path that ends in '.py'), run as `__main__`.
        world_size: How many.
        args: Its command-line arguments.
        timeout_s: For everything, start-up included.
        threads_per_rank: OMP_NUM_THREADS of each; None: the cores of this process, shared out.
        env: Environment variables to add.
        show_ranks: Ranks that print where this process prints, at once, instead of being collected.
        check: Raise if not all of them end with exit code 0.

    Raises:
        ConfigError: A target that is not there, or sizes that make no sense.
        LaunchError: A rank failed, or the time was over; has what each printed last.
    """
    import torch.distributed as dist

    where = _check(target, world_size, timeout_s, threads_per_rank)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads_per_rank or max(1, _num_cores() // world_size)),
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the launcher's, not rank 0's, as under torchrun
    }
    command = [sys.executable, "-m", "twophase_tools.launch", str(os.getpid()), *where, *args]
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="twophase_") as folder, ExitStack() as files:
        paths = [[Path(folder, f"{rank}.{stream}") for stream in STREAMS] for rank in range(world_size)]
        try:
            for rank in range(world_size):
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                out, err = (
                    None if rank in show_ranks else files.enter_context(each.open("wb")) for each in paths[rank]
                )
                environment = {**os.environ, **shared, **place, **(env or {})}
                processes.append(
                    subprocess.Popen(command, env=environment, stdout=out, stderr=err, start_new_session=True)
                )
            is_late = _wait(processes, timeout_s)
        finally:
            killed = _kill(processes)
        ranks = tuple(
            RankResult(rank, None if rank in killed else process.returncode, *map(_read, paths[rank]))
            for rank, process in enumerate(processes)
        )
    if check and any(each.exit_code != 0 for each in ranks):
        why = f"they did not end within {timeout_s:g} s" if is_late else what_failed(ranks)
        raise LaunchError(f"{world_size} processes ran {target}: {why}.{_tails(ranks)}")
    return ranks


def _check(
    target: str | Path, world_size: int, timeout_s: int | float, threads_per_rank: int | None
) -> tuple[str, str]:
    """('script' or 'module', its full name)."""
    if world_size < 1 or not timeout_s > 0 or (threads_per_rank is not None and threads_per_rank < 1):
        raise ConfigError(
            f"world_size, timeout_s and threads_per_rank must be positive, got {world_size}, {timeout_s} and "
            f"{threads_per_rank}."
        )
    if not str(target).endswith(".py"):
        return "module", str(target)
    if not Path(target).is_file():
        raise ConfigError(f"there is no script {str(target)!r}; give a path to a .py file, or a module's dotted name.")
    return "script", str(Path(target).resolve())


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _wait(processes: Sequence["subprocess.Popen[bytes]"], timeout_s: int | float) -> bool:
    """Wait for the end of all ranks; after a failure, end the others. True if the time was over before any failed."""
    deadline, has_failed = time.monotonic() + timeout_s, False
    while None in (codes := [process.poll() for process in processes]):
        if not has_failed and any(codes):
            has_failed, deadline = True, min(deadline, time.monotonic() + SURVIVORS_S)
            for process in processes:
                process.terminate()
        if time.monotonic() >= deadline:
            return not has_failed
        time.sleep(POLL_S)
    return False


def _kill(processes: Sequence["subprocess.Popen[bytes]"]) -> set[int]:
    """Kill the ranks that are left, and wait until they are gone; which they were."""
    left = {rank for rank, process in enumerate(processes) if process.poll() is None}
    for rank in left:
        processes[rank].kill()
    for process in processes:
        process.wait()
    return left


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def what_failed(ranks: Sequence[RankResult]) -> str:
    """The rank that failed, rather than one that was ended because of it."""
    failed = {each.rank: each.exit_code for each in ranks if each.exit_code}
    if not failed:
        return "the ranks were killed"
    rank = min(failed, key=lambda rank: failed[rank] == -signal.SIGTERM)
    if failed[rank] > 0:
        return f"rank {rank} failed with exit code {failed[rank]}"
    return f"rank {rank} was killed by signal {-failed[rank]}"


def _tails(ranks: Sequence[RankResult]) -> str:
    tails = [(each.rank, (each.stdout + each.stderr).strip()[-TAIL_CHARACTERS:]) for each in ranks]
    return "".join(f"\n--- rank {rank} said last:\n{tail}" for rank, tail in tails if tail)


# -- inside a rank


def _run(parent: str, kind: str, target: str, *args: str) -> None:
    """Run the target as `__main__`."""
    die_with_parent(int(parent))
    sys.argv = [target, *args]
    if kind == "script":
        sys.path.insert(0, str(Path(target).parent))
        runpy.run_path(target, run_name="__main__")
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


def die_with_parent(parent: int) -> None:
    """Have this process killed when process `parent` dies: by the kernel on Linux, elsewhere by a thread that looks.

    The kernel watches the thread that started this process, not the whole of the parent (prctl(2)): that thread must
    wait for this process to end, as `run_local` does.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)


if __name__ == "__main__":
    _run(*sys.argv[1:])
