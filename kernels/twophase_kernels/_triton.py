"""Triton, or stand-ins where it is not installed; and the one answer to 'can kernels run here, and how?'.

Triton has Linux wheels only. With the stand-ins every module of this package still imports on macOS and Windows, so
that its references, byte counts and heuristics work there; launching a kernel raises `KernelsUnavailableError`.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from twophase_kernels.choice import INTERPRET_OFF, INTERPRET_ON, Choice, choice_here, interpret_here


class KernelsUnavailableError(RuntimeError):
    """Triton kernels cannot run in this process; the message gives the reason and the fix."""


def _decide() -> Choice | None:
    """The mode that this process is to have; None where the environment contradicts itself, as `mode` will say."""
    try:
        decided = choice_here()
    except ValueError:
        return None
    if decided.mode == "interpreted" and "triton" not in sys.modules:
        interpret_here()
    return decided


_named = os.environ.get("TWOPHASE_KERNELS", "")
_decided = _decide()

try:
    import triton
    import triton.language as tl

    IMPORT_ERROR: ImportError | None = None
except ImportError as error:
    IMPORT_ERROR = error

    class _Absent:
        """Any attribute of a missing triton. As a decorator it changes nothing, as a value it is never used."""

        def __getattr__(self, name: str) -> "_Absent":
            return self

        def __call__(self, *args: Any, **options: Any) -> Any:
            return args[0] if args else self

    triton = tl = _Absent()


def _install_compiler() -> Exception | None:
    """Kernels are compiled for the CPU from here on. Returns the reason why they cannot be, for `mode` to raise."""
    if (
        _decided is None
        or _decided.mode != "cpu"
        or IMPORT_ERROR is not None
        or triton.runtime.driver._active is not None
    ):
        return None  # a driver that was set by hand stays
    try:
        import triton_on_cpu

        triton_on_cpu.install()
    except RuntimeError as error:
        return error
    return None


MAX_WIDTH = 65536  # of a row that one program holds in registers

MEANING = {
    "cuda": "compiled for a GPU",
    "cpu": "compiled for the CPU",
    "interpreted": "interpreted",
    "emulated": "emulated",
}

_install_error = _install_compiler()


@triton.jit
def _decorated_with_this_package():
    """Never launched: its type tells in which mode `triton.jit` decorated this package's kernels."""


def mode(dtype: torch.dtype | None = None) -> Literal["cuda", "cpu", "interpreted", "emulated"]:
    """How kernels run in this process. Every wrapper calls this first; it costs about a microsecond.

    'cuda': compiled for a GPU (an AMD GPU too, as torch has it). 'cpu': compiled for this machine's processor by
    triton_on_cpu. 'interpreted': by Triton's interpreter. 'emulated': compiled for a GPU and executed by ptx_emulator.

    The first import of this package decides (see choice.py). Whether kernels are interpreted is fixed when `triton.jit`
    decorates a function: at `import triton` for `tl.sum` and its kin, at the import of this package for our kernels.
    Both, and the variables' present values, must agree.

    Args:
        dtype: The kernel's dtype, if it matters. bfloat16 is refused in the interpreter.

    Raises:
        KernelsUnavailableError: With the reason and the fix.
    """
    if IMPORT_ERROR is not None:
        raise KernelsUnavailableError(
            f"Triton is not installed ({IMPORT_ERROR}); its wheels exist for Linux only. On Linux: pip install triton. "
            "Elsewhere use the torch backend: attention_backend='torch'."
        )
    interpreted = _is_interpreted(_decorated_with_this_package)
    _require_unchanged(interpreted)
    if not interpreted:
        _require_driver()
        if getattr(triton.runtime.driver.active, "runs_on_cpu", False):
            return "cpu"
        return "emulated" if getattr(triton.runtime.driver.active, "is_emulated", False) else "cuda"
    if dtype is torch.bfloat16:
        raise KernelsUnavailableError(
            "Triton's interpreter computes garbage in bfloat16 without saying so (it adds the bits as integers). "
            "Use float32 or float16, a GPU, or a C compiler: with one, kernels are compiled for the CPU and "
            "compute bfloat16 (unset TRITON_INTERPRET and TWOPHASE_KERNELS)."
        )
    return "interpreted"


def reason() -> str:
    """Why kernels run as `mode` says, unless a driver was set by hand: 'because there is no GPU'."""
    return _decided.reason if _decided else ""


def _require_unchanged(interpreted: bool) -> None:
    """Raises KernelsUnavailableError unless the environment, the mode decided from it and triton's own agree."""
    named, value = os.environ.get("TWOPHASE_KERNELS", ""), os.environ.get("TRITON_INTERPRET", "").lower()
    understood = value in (INTERPRET_ON if interpreted else INTERPRET_OFF)
    agreed = _decided and interpreted == (_decided.mode == "interpreted") == _is_interpreted(tl.sum)
    if agreed and named == _named and understood:
        return
    try:
        now = choice_here()
    except ValueError as error:
        raise KernelsUnavailableError(str(error)) from error
    raise KernelsUnavailableError(
        f"Kernels are to be {MEANING[now.mode]}, {now.reason}, but triton was imported before that was decided, and "
        "its import fixes how kernels run. Start Python again (in a notebook: restart the kernel), and import "
        "twophase_kernels, or set TWOPHASE_KERNELS or TRITON_INTERPRET, before the first import of triton."
    )


def _is_interpreted(jit_function: Callable[..., Any]) -> bool:
    return not isinstance(jit_function, triton.JITFunction)


def _require_driver() -> None:
    """Ask triton, not torch, so that a driver set by hand counts too (see aot.py)."""
    if _install_error is not None and triton.runtime.driver._active is None:
        raise KernelsUnavailableError(str(_install_error)) from _install_error
    try:
        _ = triton.runtime.driver.active
    except Exception as error:  # triton compiles a helper: AssertionError and CalledProcessError occur as well
        if torch.cuda.is_available():
            raise KernelsUnavailableError(
                f"There is a GPU, but Triton cannot build its launcher for it ({_what_is_missing(error)}). "
                "It needs a C compiler, Python's headers and libcuda.so.1 of the GPU's driver; on Debian and Ubuntu: "
                "apt install gcc python3-dev. To run models without them, use the torch backend: "
                "attention_backend='torch'."
            ) from error
        raise KernelsUnavailableError(
            f"No GPU that triton can use ({error}). Unset TWOPHASE_KERNELS, and kernels are compiled for the CPU, or "
            "interpreted where there is no C compiler; to run models without kernels, use the torch backend: "
            "attention_backend='torch'."
        ) from error


def _what_is_missing(error: Exception) -> str:
    """The missing parts of triton's toolchain; triton's own error if it is complete."""
    missing = []
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        missing.append("no gcc or clang in PATH")
    headers = sysconfig.get_paths()["include"]
    if not Path(headers, "Python.h").exists():
        missing.append(f"no Python.h in {headers}")
    return " and ".join(missing) or f"{type(error).__name__}: {error}".splitlines()[0]


def new_workspace(numel: int, device: torch.device) -> torch.Tensor:
    """Memory for partial results, fp32, as it comes."""
    return torch.empty(numel, dtype=torch.float32, device=device)


def row_tile(width: int) -> tuple[int, int, int]:
    """(rows, padded width, warps) of a program that holds whole rows: several if they are short.

    About 16 elements per thread: with more, wide rows would no longer stay in registers. Raises ValueError for rows
    without elements, or too many.
    """
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"rows must have 1 to {MAX_WIDTH} elements, got {width}.")
    padded = next_power_of_2(width)
    num_rows = max(1, 1024 // padded)
    return num_rows, padded, min(16, max(1, num_rows * padded // 512))


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two >= n, for n >= 1. (`tl.arange` takes no other lengths.)"""
    return 1 << (n - 1).bit_length()
