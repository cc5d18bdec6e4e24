"""A process of its own world: what an answer runs in where Linux allows it.

`enter` leaves the namespaces of the grader for new ones: no other process can be seen or signalled, there is no
network, and of the file system only Python, the workbook's code without its solutions, and the model are there, read
only, beside an empty /tmp that nobody else sees. Nothing has to be installed and no right is needed beyond that of
making a user namespace; some containers and distributions withhold it, and then `NotAllowed` says what was refused.

Not bubblewrap, though it does the same: it starts a program, and an answer must be forked from a process that has
imported torch already.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from twophase.core.errors import TwophaseError

NAMESPACES = "namespaces (user, pid, network, read-only files)"
PROCESS_ONLY = "process only"

_NEW_NAMESPACES = 0x00020000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x08000000  # mount, user, pid, network, ipc
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REC, _BIND, _PRIVATE, _REMOUNT, _DETACH = 1, 2, 4, 8, 0x4000, 0x1000, 1 << 18, 32, 2
_SYSCALLS = {"x86_64": (155, 442), "aarch64": (41, 442)}  # pivot_root, mount_setattr
_PR_CAPBSET_DROP, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 24, 4, 38
_LAST_CAPABILITY = 63
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "ssl", "nsswitch.conf")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SCRATCH_BYTES = 2**30


class NotAllowed(TwophaseError):
    """The kernel, or who runs this container, withholds namespaces."""


@dataclass(frozen=True)
class World:
    """What of the file system an answer sees, read only.

    Attributes:
        shown: Files and folders, besides the system's own.
        hidden: Files and folders within those, in whose place something empty stands.
    """

    shown: tuple[Path, ...]
    hidden: tuple[Path, ...] = ()


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


def enter() -> None:
    """Move this process's children into new namespaces; the first one forked then calls `settle`.

    Raises:
        NotAllowed: with what was refused.
    """
    user, group = os.getuid(), os.getgid()
    _call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)  # else /proc/self is root's, and not to be written
    if os.uname().machine not in _SYSCALLS:
        raise NotAllowed(f"namespaces are not tried on {os.uname().machine}")
    _call("unshare", _NEW_NAMESPACES)
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        raise NotAllowed(f"mapping the user into its namespace: {error.strerror}") from error


def settle(world: World) -> None:
    """In the first process of the new namespaces: build the file system, and give up every capability.

    Raises:
        NotAllowed: with what was refused.
    """
    _raise_loopback()
    try:
        _build_root(world)
    except OSError as error:
        raise NotAllowed(f"building the file system of an answer: {error}") from error
    _drop_capabilities()


def _build_root(world: World) -> None:
    here = os.path.realpath(os.environ.get("TMPDIR") or "/tmp")
    _mount(None, "/", None, _REC | _PRIVATE)
    _mount("tmpfs", here, "tmpfs", _NOSUID | _NODEV, f"mode=755,size={2**24}")
    os.mkdir(f"{here}/new")
    os.mkdir(f"{here}/old")
    _pivot_root(here, f"{here}/old")
    os.chdir("/")
    _mount("tmpfs", "/new", "tmpfs", _NOSUID | _NODEV, f"mode=755,size={2**24}")
    for name in ("proc", "dev", "tmp"):
        os.mkdir(f"/new/{name}")
    _mount("tmpfs", "/new/tmp", "tmpfs", _NOSUID | _NODEV, f"mode=1777,size={_SCRATCH_BYTES}")
    for path in (*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *map(str, world.shown)):
        _show(path)
    for hidden in world.hidden:
        _hide(f"/new{hidden}")
    _seal("/new")
    _mount(None, "/new/tmp", None, _REMOUNT | _BIND | _NOSUID | _NODEV)  # the one place to write to
    _special_files()
    os.chdir("/new")
    _pivot_root(".", ".")
    _call("umount2", b".", _DETACH)
    os.chdir("/")


def _show(path: str) -> None:
    link = _first_link(path)
    if link:  # as /lib is one to usr/lib; its target is shown by itself
        real = _real(link)
        _make_parents(f"/new{link}")
        if not os.path.lexists(f"/new{link}"):
            os.symlink(real, f"/new{link}")
        _show(real + path.removeprefix(link))
        return
    source, target = f"/old{path}", f"/new{path}"
    if not os.path.exists(source) or os.path.exists(target):
        return
    _make_parents(target)
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    _mount(source, target, None, _BIND | _REC)


def _first_link(path: str) -> str | None:
    """The outermost folder of a path that is a link, or the path itself where only that is one."""
    outermost_first = [*map(str, reversed(Path(path).parents)), path]
    return next((part for part in outermost_first if os.path.islink(f"/old{part}")), None)


def _real(path: str) -> str:
    """Where a link leads, which names a place under the old root."""
    for _ in range(40):
        if not os.path.islink(f"/old{path}"):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(f"/old{path}")))
    return path


def _make_parents(target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)


def _hide(target: str) -> None:
    if os.path.isdir(target):
        _mount("tmpfs", target, "tmpfs", _NOSUID | _NODEV, "mode=755,size=4k")
    elif os.path.exists(target):
        _mount("/old/dev/null", target, None, _BIND)


def _seal(root: str) -> None:
    """All of it read only, mounts below included."""
    attributes = struct.pack("=QQQQ", _RDONLY | _NOSUID, 0, 0, 0)
    at_fdcwd, recursive = -100, 0x8000
    number = _SYSCALLS[os.uname().machine][1]
    _call("syscall", number, at_fdcwd, root.encode(), recursive, attributes, len(attributes))


def _special_files() -> None:
    """/proc and /dev."""
    try:
        # Read only, since /proc/sys heeds the user's number and not what it may do: root's would change the machine.
        _mount("proc", "/new/proc", "proc", _NOSUID | _NODEV | _NOEXEC | _RDONLY)
    except OSError:  # withheld where a container hides parts of its own; an answer does without
        _mount("tmpfs", "/new/proc", "tmpfs", _NOSUID | _NODEV, "mode=555,size=4k")
    _mount("tmpfs", "/new/dev", "tmpfs", _NOSUID, f"mode=755,size={_SCRATCH_BYTES}")
    os.mkdir("/new/dev/shm", 0o777)
    cards = [name for name in os.listdir("/old/dev") if name.startswith("nvidia")]
    for name in (*_DEVICES, *cards):
        if os.path.exists(f"/old/dev/{name}") and not os.path.isdir(f"/old/dev/{name}"):
            os.close(os.open(f"/new/dev/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
            _mount(f"/old/dev/{name}", f"/new/dev/{name}", None, _BIND)


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
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:  # the kernel knows fewer
            break
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header, none = struct.pack("=II", 0x20080522, 0), bytes(24)
    _call("capset", header, none)


def hide_memory() -> None:
    """Let no other process of the same user look into this one, where it is not root's (ptrace, /proc/PID/mem)."""
    if sys.platform == "linux":
        _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def what_is_allowed(world: World) -> tuple[bool, str]:
    """Whether `spawn` can isolate an answer here, and how to name it; or why not."""
    if sys.platform != "linux":
        return False, PROCESS_ONLY
    mine, its = socket.socketpair()
    spawn(world, lambda: os._exit(0), its, keep=())
    with mine:
        status, refused = read_status(mine, 30)
    if status == 0 and not refused:
        return True, NAMESPACES
    return False, f"{PROCESS_ONLY} ({refused or 'namespaces do not work here'})"


def spawn(world: World | None, run: Callable[[], None], control: socket.socket, keep: Sequence[int]) -> None:
    """Run `run` in a process that only `control` reaches: closing its other end ends the process and all it started.

    Between the two stands a keeper, which alone knows how to kill what is inside; it reports the end as a status.
    Both ends of `control` must be the caller's; this one is closed here.

    Args:
        world: None for no namespaces.
        keep: File descriptors that the process needs; it gets no other.
    """
    if os.fork():
        control.close()
        return
    try:
        _keep(world, run, control, keep)
    finally:
        os._exit(70)


def _keep(world: World | None, run: Callable[[], None], control: socket.socket, keep: Sequence[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _close_all_but({*keep, control.fileno()})
    try:
        if world is not None:
            enter()
    except (OSError, NotAllowed) as error:
        control.sendall(f"-1 {error}".encode())
        os._exit(0)
    problems, problem = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            control.close()
            os.close(problems)
            os.setsid()
            if world is not None:
                settle(world)
            _close_all_but(set(keep))
            run()
        except NotAllowed as error:
            os.write(problem, str(error).encode()[:500])
        finally:
            os._exit(70)
    os.close(problem)
    for fd in keep:
        os.close(fd)
    status = _end_of(child, control)
    with os.fdopen(problems, "rb", closefd=True) as said:
        os.set_blocking(problems, False)
        refused = (said.read() or b"").decode(errors="replace")
    control.sendall(f"{status} {refused}".encode())
    os._exit(0)


def _end_of(child: int, control: socket.socket) -> int:
    """The status of `child`, killed with its process group if the other end of `control` closes first."""
    import select

    process = os.pidfd_open(child)
    select.select([process, control.fileno()], [], [])
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    return os.waitpid(child, 0)[1]


def read_status(control: socket.socket, seconds: float) -> tuple[int, str]:
    """Wait for the process at the other end of `control` to end. Its wait status, and what was refused it.

    Raises:
        TimeoutError: it still runs.
    """
    control.settimeout(seconds)
    said = b""
    while piece := control.recv(4096):
        said += piece
    status, _, refused = said.decode(errors="replace").partition(" ")
    return int(status or -1), refused


def _close_all_but(keep: set[int]) -> None:
    """0, 1 and 2 stay."""
    first = 3
    for fd in sorted(keep):
        if fd >= first:
            os.closerange(first, fd)
            first = fd + 1
    os.closerange(first, 2**16)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(function: str, *args: object) -> None:
    if getattr(_libc(), function)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")


def _pivot_root(new: str, old: str) -> None:
    _call("syscall", _SYSCALLS[os.uname().machine][0], new.encode(), old.encode())


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    try:
        _call("mount", *encoded, ctypes.c_ulong(flags), data.encode() or None)
    except OSError as error:
        raise OSError(error.errno, f"mounting {target}: {os.strerror(error.errno or 0)}") from error
