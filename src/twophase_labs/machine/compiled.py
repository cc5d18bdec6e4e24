"""A notebook's kernel as compiled code: executed in a process beside the notebook, by the emulator, on no GPU.

    compiled = Compiled(kernel)             # stands where the kernel would
    launch_paged_decode(compiled, ...)      # the same launch, the same result
    compiled.report                         # what was counted
    inspect_engine(paged_decode, ...)       # likewise, of the kernel that a wrapper of the engine launches

`check` runs a kernel in this way once it has passed here, if its exercise says how.
"""

import atexit
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from ptx_emulator import (
    CompilingProcess,
    EmulationError,
    KernelReport,
    NotCoveredError,
    inspect_call,
    inspect_in,
)
from ptx_emulator.kernel_source import KernelSourceError, kernel_source
from twophase_kernels._triton import IMPORT_ERROR
from twophase_labs.machine.checks import Draw, Rejected
from twophase_labs.machine.exercise import Exercise
from twophase_labs.machine.judge import Verdict
from twophase_labs.machine.lines import python_lines

SEED = 1
CARDS = {"sm_80": "A100", "sm_89": "RTX 4090", "sm_90": "H100"}


def why_not() -> str:
    """Empty where kernels can be compiled."""
    return f"Triton is not installed: {IMPORT_ERROR}" if IMPORT_ERROR else ""


class Compiled:
    """Launched like `kernel`, which is compiled for `target` and executed by the emulator.

    Attributes:
        report: Of the last launch.
    """

    def __init__(self, kernel: Any, target: str = "sm_90") -> None:
        self.kernel, self.target = kernel, target
        self.report: KernelReport | None = None

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            # Memory of its own for each tensor, so that an access one element too far is noticed.
            own = tuple(arg.detach().cpu().clone() if isinstance(arg, Tensor) else arg for arg in args)
            self.report = inspect_in(_process(), self.kernel, grid, own, self.target, **options)
            for mine, theirs in zip(args, own, strict=True):
                if isinstance(mine, Tensor):
                    mine.copy_(theirs)

        return launch

    def source_line(self, place: str) -> str:
        """The kernel's line at 'cell.py:7', or '' if that is not in the kernel itself."""
        source = kernel_source(self.kernel)
        file, _, number = place.rpartition(":")
        lines = python_lines(source.text)
        at = int(number or 0) - source.first_line
        return lines[at].strip() if file == source.file and 0 <= at < len(lines) else ""


def inspect_engine(wrapper: Callable[..., Any], *args: Any, target: str = "sm_90", **options: Any) -> KernelReport:
    """What is counted while `wrapper(*args, **options)` runs its kernel, with the tiles it chooses on `target`."""
    return _process().call(inspect_call, wrapper, *args, target=target, **options)


@cache
def _process() -> CompilingProcess:
    process = CompilingProcess()
    atexit.register(process.close)
    return process


def judge_compiled(exercise: Exercise, answer: Mapping[str, Any], verdict: Verdict, target: str = "sm_90") -> Verdict:
    """The passed `verdict` with a note, or one that says what the compiled code of `answer` does otherwise."""
    assert exercise.compiled is not None
    if why_not():
        return replace(verdict, notes=(*verdict.notes, f"not run here: a GPU's code ({why_not()})"))
    where = f"compiled for an {CARDS[target]} and executed without one"
    kernels = SimpleNamespace(**{name: Compiled(kernel, target) for name, kernel in answer.items()})
    try:
        exercise.compiled(kernels, Draw(SEED))
    except NotCoveredError as error:
        return replace(verdict, notes=(*verdict.notes, f"not run here: a GPU's code ({_not_covered(error)})"))
    except KernelSourceError as error:
        return _failed(verdict, f"it cannot be compiled: {error}", ())
    except Rejected as error:
        return _failed(verdict, f"run here, the kernel is right; {where}, it is not: {error}", error.details)
    except EmulationError as error:
        return _failed(verdict, f"{where}: {error.message}", _line(error, vars(kernels).values()))
    except Exception as error:  # the compiler's, whose last line is the matter
        said = str(error).strip().split("\n")[-1]
        return _failed(verdict, f"the compiler for an {CARDS[target]} refuses it: {type(error).__name__}: {said}", ())
    return replace(verdict, notes=(*verdict.notes, f"a GPU's code: right as well, {where}"))


def _not_covered(error: NotCoveredError) -> str:
    """Products of float32 in TF32 are, by default, what `tl.dot` makes of them."""
    if "tf32" in str(error):
        return 'products in TF32 cannot be executed here; with `input_precision="ieee"` in `tl.dot` the code is run'
    return str(error)


def _failed(verdict: Verdict, reason: str, details: tuple[str, ...]) -> Verdict:
    return replace(verdict, verdict="failed", reason=reason, details=details, failed_property="a GPU's code")


def _line(error: EmulationError, kernels: Iterable[Compiled]) -> tuple[str, ...]:
    """'line 7 of the cell: x = tl.load(...)'."""
    found = next((line for kernel in kernels if (line := kernel.source_line(error.source))), "")
    if found:
        return (f"line {error.source.rpartition(':')[2]} of the cell: {found}",)
    return (f"in {error.source}",) if error.source else ()
