"""From C to a shared object: which C compiler, its flags, its failures, and where this package's own library is kept.

Kernels are kept by Triton's disk cache, whose key includes `toolchain().identity`; so is pool.c, the library that runs
them. Files appear there by renaming, so that processes may compile the same thing at once.
"""

import ctypes
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from triton.runtime.cache import get_cache_manager

from triton_on_cpu.errors import CompilerError, CompilerMissingError

HERE = Path(__file__).parent
# Not -ffast-math: NaN, infinities and signed zeros keep their meaning. GPUs contract to fused multiply-adds, too.
FLAGS = (
    "-O3", "-std=gnu11", "-fPIC", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-w"
)  # fmt: skip
# Tiles' rows are too short for the calls of memcpy that gcc would make of their loops: half a small product's speed.
GCC_FLAGS = ("-fno-tree-loop-distribute-patterns",)
FLAGS_VARIABLE = "TRITON_ON_CPU_FLAGS"  # further words, such as -O1 for tests, or -g
TIMEOUT_S = 600
SHOWN_LINES = 20  # of the compiler's output


@dataclass(frozen=True)
class Toolchain:
    """A C compiler. `command` begins every call; `origin` says why it was chosen; `identity` is part of cache keys."""

    command: tuple[str, ...]
    origin: str

    @property
    def identity(self) -> str:
        return " ".join((*self.command, _version_of(self.command[0]), *flags(), _processor()))


def flags() -> list[str]:
    own = () if _is_clang(toolchain().command) else GCC_FLAGS
    return [*FLAGS, *own, *native_flags(), *shlex.split(os.environ.get(FLAGS_VARIABLE, ""))]


@cache
def _is_clang(command: tuple[str, ...]) -> bool:
    try:
        return "clang" in subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:  # reported when it is to compile
        return False


def toolchain() -> Toolchain:
    """CC if it is set, else gcc, clang or cc in PATH, else the clang of the PyPI package `ziglang`.

    Raises:
        CompilerMissingError: No compiler was found; or not the compiler in CC, for a choice is not replaced silently.
    """
    return _toolchain(os.environ.get("CC", ""), os.environ.get("PATH", ""))


@cache
def _toolchain(chosen: str, path: str) -> Toolchain:
    if chosen:
        command = shlex.split(chosen)
        if shutil.which(command[0], path=path) is None:
            raise CompilerMissingError(
                f"CC is {chosen!r}, but there is no program {command[0]!r}. Correct it, or unset it to use gcc."
            )
        return Toolchain(tuple(command), "CC")
    for name in ("gcc", "clang", "cc"):
        if found := shutil.which(name, path=path):
            return Toolchain((found,), "PATH")
    if importlib.util.find_spec("ziglang"):
        return Toolchain((sys.executable, "-m", "ziglang", "cc"), "the package ziglang")
    raise CompilerMissingError(
        "There is no C compiler: no gcc or clang in PATH, CC is not set, and the package ziglang is not installed. "
        "Install one (Debian and Ubuntu: apt install gcc; anywhere: pip install ziglang), "
        "or use Triton's interpreter, which needs none: TRITON_INTERPRET=1 before Python starts."
    )


@cache
def _version_of(program: str) -> str:
    """Distinguishes a compiler from its upgrade, without running it."""
    path = Path(shutil.which(program) or program).resolve()
    try:
        status = path.stat()
    except OSError:
        return str(path)
    return f"{path}:{status.st_size}:{status.st_mtime_ns}"


def native_flags() -> tuple[str, ...]:
    """All instructions of this processor. (x86 compilers take -mcpu for something else.)

    By themselves compilers use half of an AVX-512 vector, for processors whose clock whole ones once slowed down.
    """
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return "-march=native", "-mprefer-vector-width=512"
    return ("-mcpu=native",)


@cache
def _processor() -> str:
    """The facts behind -march=native: a cache in a home folder may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    known = ("flags", "Features", "model name", "CPU part", "CPU implementer")
    facts = sorted({line for line in lines if line.startswith(known)})
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def compile_c(source: str, name: str = "kernel", extra: tuple[str, ...] = ()) -> bytes:
    """The shared object of one C file. It loads: that was tried.

    Raises:
        CompilerMissingError: There is no compiler.
        CompilerError: It refused the source, was killed, took longer than `TIMEOUT_S`, or made what does not load.
    """
    chosen = toolchain()
    with tempfile.TemporaryDirectory(prefix="triton_on_cpu_") as folder:
        c_file, so_file = Path(folder, "kernel.c"), Path(folder, "kernel.so")
        c_file.write_text(source)
        files = ("-I", str(HERE), str(c_file), "-o", str(so_file), "-lm", "-pthread")
        _run([*chosen.command, *flags(), "-shared", *extra, *files], name)
        try:
            ctypes.CDLL(str(so_file))
        except OSError as error:
            raise CompilerError(
                f"{shlex.join(chosen.command)} (from {chosen.origin}) made a library of {name} that does not load "
                f"({error}). It may compile for another system: set CC to this machine's compiler."
            ) from error
        return so_file.read_bytes()


def _run(command: list[str], name: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise CompilerError(
            f"{command[0]} had not compiled {name} after {TIMEOUT_S} s and was stopped. "
            "Look at what else is running, or give the kernel smaller tiles."
        ) from None
    except OSError as error:  # removed since it was found, or not a program
        raise CompilerError(f"{command[0]} could not be started ({error}). Set CC to another compiler.") from error
    if done.returncode == 0:
        return
    if done.returncode < 0 or "Killed signal" in done.stderr:  # gcc is a driver, which says so of the compiler proper
        why = "It was killed: most often memory ran out. Close other programs, or give the kernel smaller tiles."
    else:
        why = "If another compiler (CC=clang) can, please report it."
    shown = "\n".join(done.stderr.strip().splitlines()[-SHOWN_LINES:])
    raise CompilerError(
        f"{command[0]} cannot compile the C of {name} (exit status {done.returncode}). {why} The command was\n"
        f"{shlex.join(command)}\n{shown}"
    )


def library(path: Path) -> ctypes.CDLL:
    """This package's C file `path`, compiled once per compiler and kept in Triton's cache."""
    source = path.read_text() + (HERE / "runtime.h").read_text()
    key = hashlib.sha256((source + toolchain().identity).encode()).hexdigest()
    files, name = get_cache_manager(key), f"{path.stem}.so"
    kept = files.get_file(name) or files.put(compile_c(path.read_text(), path.name), name)
    return load(kept, path.name, [kept])


def load(path: str, name: str, files: Iterable[str]) -> ctypes.CDLL:
    """A library from Triton's cache. If it does not load (truncated by a crash, say), `files` are removed.

    Raises:
        CompilerError: It does not load.
    """
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        for file in files:
            Path(file).unlink(missing_ok=True)
        raise CompilerError(
            f"{name} in Triton's cache does not load ({error}). It was removed: start Python again, which compiles it "
            "anew."
        ) from error
