"""A kernel as text, to be compiled in another process: one written in a notebook's cell cannot be imported there."""

import dis
import inspect
import linecache
import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from twophase_kernels._triton import tl, triton

MODULES = {"triton": triton, "tl": tl, "torch": torch, "math": math}
PLAIN = (bool, int, float, str, torch.dtype, type(None))


class KernelSourceError(ValueError):
    """A function that cannot be sent to another process as text."""


@dataclass(frozen=True)
class KernelSource:
    """A Triton function and its global names, except Triton's own.

    Attributes:
        file: Its name in error messages and reports, 'cell.py'.
        first_line: The function's line in its original file, so that line numbers are the learner's.
        module: Where it can be imported from; '' if it is compiled from `text`.
        names: Its global names: constants, and other Triton functions.
    """

    name: str
    module: str = ""
    text: str = ""
    file: str = ""
    first_line: int = 1
    names: tuple[tuple[str, Any], ...] = ()

    def load(self) -> Any:
        """The Triton function, in this process's mode."""
        if self.module:
            return getattr(__import__(self.module, fromlist=[self.name]), self.name)
        given = {name: value.load() if isinstance(value, KernelSource) else value for name, value in self.names}
        namespace = {**MODULES, **given, "__name__": "__kernel_source__"}
        lines = ("\n" * (self.first_line - 1) + self.text).splitlines(keepends=True)
        # Triton reads a kernel's source by its file's name; inspect takes it from here.
        linecache.cache[self.file] = (len(self.text), None, lines, self.file)
        exec(compile("".join(lines), self.file, "exec"), namespace)
        return namespace[self.name]


def kernel_source(kernel: Any, file: str = "cell.py") -> KernelSource:
    """The source of a function decorated with `triton.jit`, interpreted or not.

    Args:
        file: Its name from now on, if it is not in an importable module.

    Raises:
        KernelSourceError: Not a Triton function, its text is unknown, or it uses a global name that cannot be sent.
    """
    function = getattr(kernel, "fn", None)
    if not isinstance(function, FunctionType):
        raise KernelSourceError(f"expected a function decorated with @triton.jit, got {kernel!r:.80}")
    if _is_importable(function):
        return KernelSource(function.__name__, module=function.__module__)
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        raise KernelSourceError(f"the source of {function.__name__} is not known: {error}") from None
    names = []
    for name, value in _global_names(function).items():
        if name == function.__name__ or any(value is module for module in MODULES.values()):
            continue
        if isinstance(getattr(value, "fn", None), FunctionType):
            value = kernel_source(value, f"{name}.py")
        elif not isinstance(value, (*PLAIN, tl.constexpr)):
            what = f"{function.__name__} uses {name}, a {type(value).__name__}"
            raise KernelSourceError(f"{what}; kernels use numbers only")
        names.append((name, value))
    text = textwrap.dedent("".join(lines))
    return KernelSource(function.__name__, "", text, file, max(1, first_line), tuple(names))


def _is_importable(function: FunctionType) -> bool:
    """Whether another process finds this very function in its module."""
    import sys

    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if function.__module__ == "__main__" or not isinstance(module, ModuleType) or not file:
        return False
    found = getattr(module, function.__name__, None)
    return getattr(found, "fn", None) is function and function.__code__.co_filename == file


def _global_names(function: FunctionType) -> dict[str, Any]:
    """The globals that its code loads. `tl.zeros` loads `tl`, not `zeros`, even if the cell defines `zeros`."""
    wanted = set(_loaded(function.__code__))
    return {name: value for name, value in function.__globals__.items() if name in wanted}


def _loaded(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _loaded(constant)
