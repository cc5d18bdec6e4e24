"""Small kernels, compiled and run without Triton's launcher: TTIR, C, a call by ctypes.

A test may give a module with a bug planted in it: `planted` puts its functions where the compiler looks for them. The
C headers can have bugs too (`HeaderMutant`). Shared objects are kept by their text, for the length of the process.
"""

import ctypes
import faulthandler
import functools
import math
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
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.mutation import Mutant
from triton_on_cpu import checks, compile, generate
from triton_on_cpu.driver import CpuBackend, Options, make_ttir

PACKAGE = Path(compile.HERE)
MODULES = ("ttir", "nest", "plan", "kernel", "elements", "memory", "products", "reductions", "control", "generate")
KINDS = {0: None, 1: "load", 2: "store", 3: "atomic", 4: "assert"}


@dataclass(frozen=True)
class Fault:
    kind: str
    program: tuple[int, ...]
    argument: int
    line: int
    element: int


NAMES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv", torch.bool: "i1", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32",
    torch.int64: "i64", torch.uint8: "u8", torch.uint32: "u32", torch.uint64: "u64",
}  # fmt: skip
SCALARS = {ctypes.c_bool: "i1", ctypes.c_int32: "i32", ctypes.c_int64: "i64", ctypes.c_float: "fp32"}


@functools.cache
def ttir_of(kernel: Any, types: tuple[str, ...], **constants: object) -> str:
    """As Triton's own compilation makes it for this backend; `types` are those of the arguments that are no constants."""
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(names, types, strict=True)) | dict.fromkeys(constants, "constexpr")
    backend, options = CpuBackend(GPUTarget("cpu", 0, 1)), Options(debug=True)  # which keeps device_assert
    context = ir.context()
    ir.load_dialects(context)
    implementations = backend.get_codegen_implementation(options)
    source = ASTSource(kernel, signature, constants)
    return str(make_ttir(source.make_ir(None, options, implementations, backend.get_module_map(), context), {}))


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


def build(kernel: Any, *values: object, checked: bool = False, **constants: object) -> tuple[Any, generate.Generated]:
    """(the compiled kernel, what was generated) for arguments of these types."""
    types = tuple(f"*{NAMES[v.dtype]}" if isinstance(v, torch.Tensor) else SCALARS[type(v)] for v in values)
    generated = generate.generate(ttir_of(kernel, types, **constants), checked)
    headers = "".join(path.read_text() for path in sorted(Headers.folder.glob("*.h")))
    return _loaded(generated.c_source, Headers.folder, Headers.level, headers), generated


def as_argument(value: Any) -> Any:
    """A tensor, or a number of C."""
    kinds = {bool: ctypes.c_bool, int: ctypes.c_int32, float: ctypes.c_float}
    return kinds[type(value)](value) if type(value) in kinds else value


def run(
    kernel: Any,
    *values: object,
    grid: Sequence[int] = (1,),
    checked: bool = False,
    extents: dict[int, int] | None = None,
    limit_s: float | None = None,
    **constants: object,
) -> Fault | None:
    """Runs a kernel on tensors, in place, and on numbers (int32, float, or ctypes'); the fault that a checked one has met.

    Args:
        extents: Bytes that an argument may touch, where its tensor is larger.
        limit_s: Tells a checked kernel to stop after so long.
    """
    given = [as_argument(value) for value in values]
    library, generated = build(kernel, *given, checked=checked, **constants)
    assert len(given) == len(generated.arguments), [a.name for a in generated.arguments]
    bounds = (checks.Extent * max(1, len(given)))()
    for i, value in enumerate(given):
        if isinstance(value, torch.Tensor):
            given[i], storage = ctypes.c_uint64(value.data_ptr()), value.untyped_storage()
            bounds[i] = checks.Extent(storage.data_ptr(), (extents or {}).get(i, storage.nbytes()))
    pointers = (ctypes.c_void_p * max(1, len(given)))(*[ctypes.addressof(word) for word in given])
    fault, stop = checks.Fault(), ctypes.c_int32(0)
    grid = (*grid, 1, 1)[:3]
    launch = checks.Launch(grid, len(given), *map(ctypes.addressof, (bounds, fault, stop)))
    if limit_s is not None:
        threading.Timer(limit_s, setattr, (stop, "value", 1)).start()
    library.run_programs(ctypes.byref(launch), pointers, 0, math.prod(grid))
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
