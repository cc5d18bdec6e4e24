"""Start N processes on this machine through torchrun, from a script or a notebook, and leave none behind.

    caller (a notebook's kernel)  ->  torchrun  ->  rank 0, rank 1, ...

torchrun gives every rank a process session of its own, so no signal to a process group reaches them all, and ranks
outlive a torchrun that was killed. So each process of the chain asks the kernel to be killed when its parent dies: to
end them all it is enough to kill torchrun, and when the caller is killed the rest follows, stopped processes included.

What a start costs is mostly `import torch`, once in torchrun and once, at the same time, in every rank. The threads of
all ranks together should not exceed the cores, so each gets its share (OMP_NUM_THREADS).
"""

import ctypes
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twophase.core.errors import ConfigError

DEFAULT_TIMEOUT_S = 120.0
SURVIVORS_S = 10.0  # after a rank has failed, the others may live this long to notice and to say so
KILLED_S = 10.0  # a killed process that is still there after this long hangs in the kernel
POLL_S = 0.2
TAIL_CHARACTERS = 2000  # of each rank's output in an error message
STREAMS = ("stdout", "stderr")  # descriptors 1 and 2
PR_SET_PDEATHSIG = 1  # prctl(2)


@dataclass(frozen=True, slots=True)
class RankResult:
    """How one rank ended.

    Attributes:
        rank: Which.
        exit_code: 0 is success, and nothing else is; -9: killed by signal 9; -15: most likely by torchrun, because
            another rank had failed. None: killed by `run_local`, or together with torchrun.
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

    When a rank fails, torchrun ends the others; on a timeout, on Ctrl-C and when this process dies, all are killed.
    None of them runs any more when this function has returned or raised.

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
    where = _check(target, world_size, timeout_s, threads_per_rank)
    with tempfile.TemporaryDirectory(prefix="twophase_") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "twophase_features.parallel.launch", "agent", str(os.getpid()), str(folder)]
        command += [str(world_size), ",".join(map(str, show_ranks)), *where, *args]
        process = subprocess.Popen(
            command,
            env=_environment(threads_per_rank or max(1, _num_cores() // world_size), env),
            start_new_session=True,
        )
        try:
            in_time = _wait(process, folder, timeout_s)
        finally:
            _kill(process, folder)
        ranks = tuple(_result(folder, rank) for rank in range(world_size))
    if check and (process.returncode != 0 or any(each.exit_code != 0 for each in ranks)):
        why = what_failed(ranks) if in_time else f"they did not end within {timeout_s:g} s"
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


def _environment(num_threads: int, extra: Mapping[str, str] | None) -> dict[str, str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(num_threads)} | {
        **(extra or {})
    }


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _wait(process: "subprocess.Popen[bytes]", folder: Path, timeout_s: int | float) -> bool:
    """Wait for the end, or until the survivors of a failed rank have had their time; False if the time was over."""
    deadline = time.monotonic() + timeout_s
    has_failed = False
    while time.monotonic() < deadline:
        try:
            process.wait(POLL_S)
            return True
        except subprocess.TimeoutExpired:
            if not has_failed and _has_failed(folder):
                has_failed = True
                deadline = min(deadline, time.monotonic() + SURVIVORS_S)
    return has_failed


def _has_failed(folder: Path) -> bool:
    for path in folder.glob("*.pid"):
        note, pid = _read(path.with_suffix(".exit")), _read(path)
        if note not in ("", "0") or (not note and pid and not is_running(int(pid))):
            return True
    return False


def _kill(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Kill torchrun, with which its ranks die, and wait until all of them are gone."""
    if process.poll() is None:
        process.kill()
        process.wait()
    deadline = time.monotonic() + KILLED_S
    for path in folder.glob("*.pid"):
        pid = int(_read(path) or os.getpid())
        while pid != os.getpid() and is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether there is such a process; a zombie, which only waits until its exit status is read, is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's: the number was given away again
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # no /proc here; or it ended just now
        return sys.platform != "linux"


def _result(folder: Path, rank: int) -> RankResult:
    codes = json.loads(_read(folder / "failures.json") or "{}")
    ended = _read(folder / f"{rank}.exit")
    exit_code = codes.get(str(rank), int(ended) if ended else None)
    return RankResult(rank, exit_code, *(_read(folder / f"{rank}.{stream}") for stream in STREAMS))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def what_failed(ranks: Sequence[RankResult]) -> str:
    """The rank that failed, rather than one that torchrun ended because of it."""
    failed = {each.rank: each.exit_code for each in ranks if each.exit_code}
    if not failed:
        return "torchrun was killed or could not start them"
    rank = min(failed, key=lambda rank: failed[rank] == -signal.SIGTERM)
    if failed[rank] > 0:
        return f"rank {rank} failed with exit code {failed[rank]}"
    return f"rank {rank} was killed by signal {-failed[rank]}"


def _tails(ranks: Sequence[RankResult]) -> str:
    tails = [(each.rank, (each.stdout + each.stderr).strip()[-TAIL_CHARACTERS:]) for each in ranks]
    return "".join(f"\n--- rank {rank} said last:\n{tail}" for rank, tail in tails if tail)


# -- inside torchrun's process, and inside each rank's


def _agent(parent: str, folder: str, world_size: str, shown: str, *rest: str) -> int:
    """Be torchrun; leave a note of the exit codes of ranks that failed."""
    die_with_parent(int(parent))
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    logging.disable(logging.ERROR)  # torchrun's own report says no more than the caller's
    options = ["--standalone", "--nproc-per-node", world_size, "--shutdown-timeout", str(int(SURVIVORS_S))]
    options += ["--log-dir", f"{folder}/logs", "-m", "twophase_features.parallel.launch"]
    try:
        torchrun([*options, "rank", str(os.getpid()), folder, shown, *rest])
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        (Path(folder) / "failures.json").write_text(json.dumps(codes))
        return 1
    return 0


def _rank(parent: str, folder: str, shown: str, kind: str, target: str, *args: str) -> int:
    """Be one rank: run the target as __main__; leave a note of the process id, and of the exit code at the end."""
    rank = os.environ["RANK"]
    if rank not in shown.split(","):  # not by torchrun's --redirects, which can name ten ranks only
        for descriptor, stream in enumerate(STREAMS, start=1):
            os.dup2(os.open(f"{folder}/{rank}.{stream}", os.O_WRONLY | os.O_CREAT), descriptor)
    (Path(folder) / f"{rank}.pid").write_text(str(os.getpid()))
    die_with_parent(int(parent))
    sys.argv = [target, *args]
    exit_code = 1
    try:
        if kind == "script":
            sys.path.insert(0, str(Path(target).parent))
            runpy.run_path(target, run_name="__main__")
        else:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        exit_code = 0
    except SystemExit as end:
        exit_code = _exit_code(end.code)
        raise
    finally:
        (Path(folder) / f"{rank}.exit").write_text(str(exit_code))
    return exit_code


def _exit_code(code: Any) -> int:
    return 0 if code is None else code if isinstance(code, int) else 1


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
    roles: dict[str, Callable[..., int]] = {"agent": _agent, "rank": _rank}
    sys.exit(roles[sys.argv[1]](*sys.argv[2:]))
