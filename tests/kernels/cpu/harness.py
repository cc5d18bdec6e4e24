"""Small kernels, compiled and run without Triton's launcher: TTIR, C, a call by ctypes.

A test may give a module with a bug planted in it: `planted` puts its functions where the compiler looks for them. The
C headers can have bugs too (`HeaderMutant`). Shared objects are kept by their text, for the length of the process.
"""

import ctypes
import faulthandler
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from tests.kernels.cpu import small_kernels
from tests.mutation import Mutant
from triton_on_cpu import checks, compile, generate

PACKAGE = Path(compile.HERE)
ROOT = Path(__file__).parents[3]
MODULES = ("ttir", "nest", "plan", "kernel", "elements", "memory", "products", "reductions", "control", "generate")
KINDS = {0: None, 1: "load", 2: "store", 3: "atomic", 4: "assert"}


@dataclass(frozen=True)
class Fault:
    kind: str
    program: tuple[int, ...]
    argument: int
    line: int
    element: int


@functools.cache
def all_ttir() -> dict[str, str]:
    """TTIR of all of `small_kernels`, from one process; kept for other processes in the folder for temporary files."""
    wanted = json.dumps({name: (p.function, p.signature, p.constants) for name, p in small_kernels.PROGRAMS.items()})
    files = (Path(small_kernels.__file__), Path(__file__).with_name("front_end.py"), PACKAGE / "driver.py")
    sources = [*(file.read_text() for file in files), wanted, version("triton"), str(files[0])]
    key = hashlib.sha256("".join(sources).encode()).hexdigest()[:16]
    kept = Path(tempfile.gettempdir(), f"triton_on_cpu_tests_{os.getuid()}_{key}.json")
    if not kept.exists():
        text = front_end("tests.kernels.cpu.small_kernels", wanted)
        compile.replace_file(kept, text.encode())
    return json.loads(kept.read_text())


def front_end(module: str, wanted: str) -> str:
    path = os.pathsep.join([str(ROOT), str(PACKAGE.parent), *sys.path])
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.kernels.cpu.front_end", module]
    done = subprocess.run(command, input=wanted, capture_output=True, text=True, env=env, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


class Headers:
    """Where the C compiler finds the package's headers; a mutant has them in a folder of its own."""

    folder = PACKAGE
    level = "-O3"


@functools.cache
def _loaded(source: str, folder: Path, level: str, headers: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as scratch:
        c, so = Path(scratch, "kernel.c"), Path(scratch, "kernel.so")
        c.write_text(source)
        command = [*compile.toolchain().command, *compile.flags(), *level.split(), "-shared", "-I", str(folder)]
        done = subprocess.run([*command, str(c), "-o", str(so), "-lm"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr[:2000]}\n{source}"
        return ctypes.CDLL(str(so))


def build(ttir: str, checked: bool = False) -> tuple[Any, generate.Generated]:
    generated = generate.generate(ttir, checked)
    headers = "".join(path.read_text() for path in sorted(Headers.folder.glob("*.h")))
    return _loaded(generated.c_source, Headers.folder, Headers.level, headers), generated


SCALARS = {
    "i1": ctypes.c_bool, "i8": ctypes.c_int8, "i16": ctypes.c_int16, "i32": ctypes.c_int32, "i64": ctypes.c_int64,
    "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip


def run(
    program: str,
    *values: object,
    grid: Sequence[int] = (1,),
    checked: bool = False,
    ttir: str | None = None,
    programs_per_call: int = 0,
    extents: dict[int, int] | None = None,
    limit_s: float | None = None,
) -> Fault | None:
    """Runs a kernel on tensors, in place, and on numbers; the fault that a checked one has met.

    Args:
        program: A name in `small_kernels.PROGRAMS`.
        ttir: Instead of that program's.
        programs_per_call: Calls `run_programs` several times, on so many programs each.
        extents: Bytes that an argument may touch, where its tensor is larger.
        limit_s: Tells a checked kernel to stop after so long.
    """
    library, generated = build(ttir or all_ttir()[program], checked)
    assert len(values) == len(generated.arguments), [a.name for a in generated.arguments]
    kept, bounds = [], (checks.Extent * max(1, len(values)))()
    for i, (value, argument) in enumerate(zip(values, generated.arguments, strict=True)):
        if argument.is_pointer:
            kept.append(ctypes.c_uint64(value.data_ptr()))
            storage = value.untyped_storage()
            bounds[i] = checks.Extent(storage.data_ptr(), (extents or {}).get(i, storage.nbytes()))
        else:
            kept.append(SCALARS[argument.type](value))
    pointers = (ctypes.c_void_p * max(1, len(kept)))(*[ctypes.addressof(word) for word in kept])
    fault, stop = checks.Fault(), ctypes.c_int32(0)
    grid = (*grid, 1, 1)[:3]
    launch = checks.Launch(grid, len(values), ctypes.addressof(bounds), ctypes.addressof(fault), ctypes.addressof(stop))
    if limit_s is not None:
        threading.Timer(limit_s, setattr, (stop, "value", 1)).start()
    total = grid[0] * grid[1] * grid[2]
    step = programs_per_call or max(1, total)
    for first in range(0, total, step):
        library.run_programs(ctypes.byref(launch), pointers, first, min(first + step, total))
    if not fault.failed:
        return None
    return Fault(KINDS[fault.kind], tuple(fault.program), fault.argument, fault.line, fault.element)


# ---- planted bugs


def is_original(module: Any) -> bool:
    return not isinstance(module, SimpleNamespace) and "__mutant_" not in module.__name__


@contextmanager
def planted(module: Any) -> Iterator[None]:
    """The compiler with a module that may have a bug: its functions and tables stand where the original's were."""
    if isinstance(module, SimpleNamespace):  # of a header
        with tempfile.TemporaryDirectory() as folder:
            for header in PACKAGE.glob("*.h"):
                Path(folder, header.name).write_text(module.text if header.name == module.name else header.read_text())
            before, Headers.folder = Headers.folder, Path(folder)
            try:
                yield
            finally:
                Headers.folder = before
        return
    original = sys.modules[module.__name__.partition("__mutant_")[0]]
    if original is module:
        yield
        return
    own = {k: v for k, v in vars(module).items() if not k.startswith("__")}
    restored, before = [], dict(vars(original))
    for name in MODULES:
        place = sys.modules[f"triton_on_cpu.{name}"]
        for key, value in list(vars(place).items()):
            is_own = place is original or (key in own and value is before.get(key) and key not in ("re", "math"))
            if is_own and key in own:
                restored.append((place, key, value))
                setattr(place, key, own[key])
    try:
        yield
    finally:
        for place, key, value in restored:
            setattr(place, key, value)


def in_child(function: Callable[[], None], limit_s: float = 20) -> None:
    """Calls a function in a forked process: a planted bug may crash it, or never end.

    Raises:
        AssertionError: With the message of what it raised, or how it ended.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        torch.set_num_threads(1)  # the parent's threads are not here: torch would wait for them
        try:
            function()
        except BaseException as error:
            os.write(writer, (f"{type(error).__name__}: {error}")[:4000].encode(errors="replace"))
            os._exit(1)
        os._exit(0)
    os.close(writer)
    end = time.monotonic() + limit_s
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
        time.sleep(0.01)
    with os.fdopen(reader, "rb") as pipe:
        message = pipe.read().decode()
    assert ended[1] == 0, message or f"it ended with status {ended[1]}"


@contextmanager
def optimised(level: str) -> Iterator[None]:
    """'-O1' where many kernels are compiled and each runs once; '-O0' leaves each access where it stands."""
    before, Headers.level = Headers.level, level
    try:
        yield
    finally:
        Headers.level = before


@dataclass(frozen=True)
class HeaderMutant(Mutant):
    """A planted bug in a C header of the package: `module` is its file's name."""

    @property
    def checked_module(self) -> str:
        return "triton_on_cpu.generate"

    def source(self) -> str:
        text = (PACKAGE / self.module).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"mutant {self.name!r}: {self.old!r} occurs {text.count(self.old)} times in {self.module}")
        return text.replace(self.old, self.new)

    def load(self) -> ModuleType:
        return SimpleNamespace(name=self.module, text=self.source())  # type: ignore[return-value]


def tensor(values: object, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)
