"""A process of its own world: what an answer runs in where Linux allows it.

`call` runs a function in a fork that is killed in time, in new namespaces: no other process can be seen or signalled,
there is no network, and of the file system only Python, the workbook's code without its solutions, and the model are
there, read only, beside an empty /tmp that nobody else sees. Nothing has to be installed and no right is needed beyond
that of making a user namespace; some containers and distributions withhold it, and then `isolation_of` says why.

Not bubblewrap, though it does the same: it starts a program, and an answer must be forked from a process that has
imported torch already.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = "namespaces and limits"
LIMITS_ONLY = "limits only"
MAX_BYTES = 2**22  # that `call` hears of
END_S = 2  # for a process that has closed its descriptor to be gone
MAX_PROCESSES = 256  # of an answer; of root's where numbers are each namespace's own, since Linux 6.14
MAX_RUNNING, MAX_RESIDENT = 8, 6 * 2**30  # threads that compute, for WATCHES in a row; bytes of all processes together
WATCH_S, WATCHES = 0.25, 3
MAX_FILES = 1024  # open at once in a process: each may hold a buffer of the kernel's

_NEW_NAMESPACES = 0x00020000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x08000000  # mount, user, pid, network, ipc
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REC, _BIND, _PRIVATE, _REMOUNT = 1, 2, 4, 8, 0x4000, 0x1000, 1 << 18, 32
_MOUNT_SETATTR = 442  # a system call that the C library may not know
_PR_CAPBSET_DROP, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 24, 4, 38
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "ssl", "nsswitch.conf")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SCRATCH_BYTES, _SCRATCH_FILES = 2**30, 2**16


@dataclass(frozen=True)
class World:
    """What of the file system an answer sees, read only.

    Attributes:
        shown: Files and folders, besides the system's own.
        hidden: Files and folders within those, in whose place something empty stands.
    """

    shown: tuple[Path, ...]
    hidden: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a process of `call` ended: what it said, up to the end of a line, and its status, None if time was up."""

    said: bytes
    status: int | None


def call(world: World | None, run: Callable[[int, str], object], seconds: int | float) -> Ended:
    """Run `run(descriptor, folder)` in a process, and read what it writes there; it and all it started are killed then.

    Between the two stands a keeper, which alone knows how to kill what is inside; it does so too if this process ends.

    `world` is None for no namespaces. The process has no file descriptor but its own, and a new folder to write to.
    """
    mine, its = socket.socketpair()
    with tempfile.TemporaryDirectory(prefix="twophase-grade-", ignore_cleanup_errors=True) as folder:
        keeper = os.fork()
        if keeper == 0:
            try:
                mine.close()
                _keep(world, run, seconds, its, os.path.realpath(folder))
            finally:
                os._exit(70)
        its.close()
        with mine:
            heard = b"".join(iter(lambda: mine.recv(2**16), b""))
        os.waitpid(keeper, 0)
    status, _, said = heard.partition(b"\n")
    return Ended(said, int(status) if status not in (b"", b"late") else None)


def isolation_of(world: World) -> str:
    """NAMESPACES where `call` can isolate an answer; else LIMITS_ONLY, and why."""
    said = call(world, lambda descriptor, folder: os.write(descriptor, b"ok\n"), 30).said
    return NAMESPACES if said == b"ok\n" else f"{LIMITS_ONLY} ({said.decode(errors='replace')[:200].strip()})"


def _keep(
    world: World | None, run: Callable[[int, str], object], seconds: int | float, caller: socket.socket, folder: str
) -> None:
    deadline = time.monotonic() + seconds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    heard, said = os.pipe()
    _close_all_but({caller.fileno(), heard, said})
    try:
        if world is not None:
            _enter()
        child = os.fork()
    except OSError as error:
        caller.sendall(f"0\n{error}".encode())
        return
    if child == 0:
        try:
            os.setsid()
            _close_all_but({said})
            if world is not None:
                _settle(world, folder)
            run(said, "/tmp" if world is not None else folder)
            os._exit(0)
        except OSError as error:
            os.write(said, str(error).encode()[:500])
        finally:
            os._exit(70)
    os.close(said)
    told, is_late = _told_by(child, heard, caller.fileno(), deadline, Path(folder, "proc"))
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    status = os.waitpid(child, 0)[1]
    caller.sendall((b"late" if is_late else str(status).encode()) + b"\n" + told)


def _told_by(child: int, heard: int, caller: int, deadline: float, proc: Path) -> tuple[bytes, bool]:
    """What comes from the child up to the end of a line or of the child, and whether the deadline came first.

    `proc` is its namespace's; without namespaces nothing is there, and what it takes is not watched.
    """
    told, process, greedy = b"", os.pidfd_open(child), 0
    while not told.endswith(b"\n") and len(told) < MAX_BYTES:
        left_s = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([heard, process, caller], [], [], min(WATCH_S, left_s))
        if not ready and left_s < WATCH_S:
            return told, True
        if not ready:
            running, resident = _taken(proc)
            greedy = greedy + 1 if running > MAX_RUNNING else 0
            if greedy == WATCHES or resident > MAX_RESIDENT:
                break
            continue
        piece = os.read(heard, 2**16) if heard in ready else b""
        if not piece:  # its end, or that of the caller
            select.select([process, caller], [], [], END_S)
            break
        told += piece
    return told, False


def _taken(proc: Path) -> tuple[int, int]:
    """Threads inside that compute, and bytes; limits of a process hold neither, and both are taken from others."""
    running = resident = 0
    for process in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            pages = (process / "statm").read_text().split()
            resident += (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGESIZE")
            running += sum(
                (task / "stat").read_text().rpartition(")")[2].split()[0] == "R" for task in process.glob("task/*")
            )
    return running, resident


def importable() -> Iterator[Path]:
    """What Python imports from. Of other folders than an installation's, packages and modules only."""
    prefixes = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    roots = [prefix.resolve() for prefix in prefixes]
    yield from roots
    yield from prefixes  # sys.path names them so, and an environment may be a link to another
    yield Path(sys.executable).parent
    for entry in map(Path, filter(None, sys.path)):
        if any(entry.resolve().is_relative_to(root) for root in roots) or not entry.is_dir():
            continue
        for child in entry.iterdir():
            is_package = child.is_dir() and ((child / "__init__.py").exists() or child.suffix == ".dist-info")
            if is_package or child.suffix in (".py", ".so"):
                yield child


def _enter() -> None:
    """Move this process's children into new namespaces; the first one forked then calls `_settle`.

    Raises:
        OSError: with what was refused.
    """
    user, group = os.getuid(), os.getgid()
    _call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is root's, and not to be written
    _call("unshare", _NEW_NAMESPACES)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _settle(world: World, root: str) -> None:
    """In the first process of the new namespaces: build the file system in `root`, and give up every capability.

    Raises:
        OSError: with what was refused.
    """
    import resource

    _raise_loopback()
    _limit_the_system()
    _build(world, root)
    os.chroot(root)
    os.chdir("/")
    _drop_capabilities()
    resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_FILES, MAX_FILES))
    resource.setrlimit(resource.RLIMIT_NPROC, (MAX_PROCESSES, MAX_PROCESSES))


def _limit_the_system() -> None:
    """Of these namespaces, what limits of a process do not hold; where the system has no such file, it stays so.

    Namespaces inside would give every capability back, to mount memory without a limit; shared memory is nobody's.
    """
    limits = {
        "user/max_user_namespaces": 0,
        "kernel/shmall": 2**16,
        "kernel/msgmni": 16,
        "kernel/sem": "250 4000 32 16",
    }
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release and (int(release[1]), int(release[2])) >= (6, 14):  # before, it was the machine's
        limits["kernel/pid_max"] = 300 + MAX_PROCESSES  # 300 are kept for the first to run
    for name, most in {**{f"sys/{n}": m for n, m in limits.items()}, "self/oom_score_adj": 1000}.items():
        with contextlib.suppress(OSError):
            Path("/proc", name).write_text(str(most))


def _build(world: World, root: str) -> None:
    """The new file system. A process in it has no right to leave it: to `chroot` again, or to mount."""
    wanted = [*map(Path, (*_SYSTEM, *(f"/etc/{name}" for name in _ETC))), *world.shown]
    links = {
        os.path.join(os.path.realpath(part.parent), part.name): os.path.realpath(part)  # as /lib is one to usr/lib
        for path in wanted
        for part in (path, *path.parents)
        if part.is_symlink()
    }
    places = sorted({os.path.realpath(path) for path in wanted if path.exists()})  # a folder before what is in it
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, f"mode=755,size={2**24}")
    for name in ("proc", "dev", "tmp"):
        os.mkdir(f"{root}/{name}")
    scratch = f"size={_SCRATCH_BYTES},nr_inodes={_SCRATCH_FILES}"
    _mount("tmpfs", f"{root}/tmp", "tmpfs", _NOSUID | _NODEV, f"mode=1777,{scratch}")
    for path in places:
        if not os.path.exists(f"{root}{path}"):  # else it is in a folder that is shown
            _show(path, root)
    for link, place in links.items():
        if not os.path.lexists(f"{root}{link}"):
            os.makedirs(os.path.dirname(f"{root}{link}"), exist_ok=True)
            os.symlink(place, f"{root}{link}")
    for hidden in world.hidden:
        _hide(f"{root}{hidden}")
    _seal(root)
    _mount(None, f"{root}/tmp", None, _REMOUNT | _BIND | _NOSUID | _NODEV)  # the one place to write to
    _special_files(root, scratch)


def _show(path: str, root: str) -> None:
    target = f"{root}{path}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        Path(target).touch()
    _mount(path, target, None, _BIND | _REC)


def _hide(target: str) -> None:
    if os.path.isdir(target):
        _mount("tmpfs", target, "tmpfs", _NOSUID | _NODEV, "mode=755,size=4k")
    elif os.path.exists(target):
        _mount("/dev/null", target, None, _BIND)


def _seal(root: str) -> None:
    """All of it read only, mounts below included."""
    attributes = struct.pack("=QQQQ", _RDONLY | _NOSUID, 0, 0, 0)
    at_fdcwd, recursive = -100, 0x8000
    _call("syscall", _MOUNT_SETATTR, at_fdcwd, root.encode(), recursive, attributes, len(attributes))


def _special_files(root: str, scratch: str) -> None:
    """/proc and /dev."""
    try:
        # Read only, since /proc/sys heeds the user's number and not what it may do: root's would change the machine.
        _mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC | _RDONLY)
    except OSError:  # withheld where a container hides parts of its own; an answer does without
        _mount("tmpfs", f"{root}/proc", "tmpfs", _NOSUID | _NODEV, "mode=555,size=4k")
    _mount("tmpfs", f"{root}/dev", "tmpfs", _NOSUID, f"mode=755,{scratch}")
    os.mkdir(f"{root}/dev/shm", 0o777)
    for device in Path("/dev").iterdir():
        if (device.name in _DEVICES or device.name.startswith("nvidia")) and not device.is_dir():
            _show(str(device), root)


def _raise_loopback() -> None:
    """127.0.0.1 of the new network, which leads nowhere else."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        get_flags, set_flags, up = 0x8913, 0x8914, 1
        try:
            flags = struct.unpack("16sh", fcntl.ioctl(control, get_flags, struct.pack("16sh", b"lo", 0)))[1]
            fcntl.ioctl(control, set_flags, struct.pack("16sh", b"lo", flags | up))
        except OSError:  # no loopback, then
            return


def _drop_capabilities() -> None:
    """For good: no program started later gets them back."""
    for capability in range(64):
        try:
            _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:  # the kernel knows fewer
            break
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("capset", struct.pack("=II", 0x20080522, 0), bytes(24))


def hide_memory() -> None:
    """Let no other process of the same user look into this one, where it is not root's (ptrace, /proc/PID/fd)."""
    if sys.platform == "linux":
        _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def _close_all_but(keep: set[int]) -> None:
    """0, 1 and 2 stay."""
    first = 3
    for fd in sorted(keep):
        if fd >= first:
            os.closerange(first, fd)
            first = fd + 1
    os.closerange(first, 2**16)


def _call(function: str, *args: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    try:
        _call("mount", *encoded, ctypes.c_ulong(flags), data.encode() or None)
    except OSError as error:
        raise OSError(error.errno, f"mounting {target}: {os.strerror(error.errno or 0)}") from error
