"""Triton in a notebook: the same cell runs on a GPU, compiled for the CPU, or interpreted.

    from twophase_labs.machine.kernels import device, tl, triton

Import it before anything that imports triton: how kernels run is decided when twophase_kernels is imported, and fixed
when triton is (see `twophase_kernels.choice`). To use `print` and `assert` in a kernel, set TWOPHASE_KERNELS to
'interpreted' in the first cell, and restart.

Launches of a kernel that a learner's cell defines are checked, compiled for the CPU or interpreted: an access outside
of a tensor is a Python error, compiled also a loop without an end. The engine's kernels run unchecked. What Triton says
of a mistake in a cell's kernel is told with the cell's line and the usual cause (`MISTAKES`).

Where kernels cannot run at all (macOS, Windows), a cell that launches one would stop 'Run All'. Such a cell begins with
the comment `# needs: triton`; there it prints why it was not run, and the notebook goes on.
"""

import contextlib
import itertools
import re
import sys
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import torch

from twophase_kernels._triton import IMPORT_ERROR, KernelsUnavailableError, mode, reason, tl, triton
from twophase_kernels.choice import choice_here
from twophase_labs.machine.lines import LEARNERS_FILES, is_learners_file

NEEDS_TRITON = "# needs: triton"
LAUNCH_LIMIT_S = 10  # of a checked launch, by the clock
# What Triton or Python says of a mistake, and the usual cause. The first that fits counts.
MISTAKES = (
    (r"'function' object is not subscriptable", "@triton.jit is missing above the kernel's def."),
    (r"object of type 'int' has no len", "The grid is a tuple: kernel[(4,)], with a comma."),
    (
        r"tensor index|__setitem__|item assignment|`_semantic`|not iterable",
        "A pointer has no index: tl.load(ptr + i) reads, tl.store(ptr + i, x) writes.",
    ),
    (r"Break|Continue", "A kernel has no break or continue: put the condition into `while`, or use tl.where."),
    (r"pointer<.*fp\d|fp\d.*pointer<", "An index must be an integer: // divides integers, / makes a float."),
    (r"missing 1 required positional", "An argument, or a block size that is given by name, was left out."),
    (r"numpy.ndarray", "A kernel takes tensors: torch.from_numpy(x)."),
    (r"'NoneType' object has no attribute", "None was passed for a tensor that this line uses."),
    (
        r"must be of type tl.constexpr",
        "`: tl.constexpr` is missing at the parameter, or a range moves: write start + tl.arange(0, BLOCK).",
    ),
    (r"must be a power of 2", "Take the size that is rounded up to a power of two, and mask what does not exist."),
    (r"incompatible dimensions", "Two tiles differ in shape: x[:, None] is a column, x[None, :] a row."),
    (r"equal reduction dimensions", "tl.dot takes [M, K] and [K, N]: tl.trans turns a tile."),
    (r"must be same dtype", "tl.dot takes two tiles of one type: a.to(b.dtype)."),
    (r"MatMult", "The product of two tiles is tl.dot(a, b)."),
    (r"Loop-carried", "What a loop carries keeps its shape and type: begin with tl.full or tl.zeros of both."),
    (r"Unsupported function", "A kernel calls functions of tl and other kernels, none of torch or math."),
    (r"more than one value is ambiguous", "`if` takes one number, not a tile: use tl.where."),
)

__all__ = ["KernelMistake", "are_compiled", "device", "how_kernels_run", "tl", "triton", "trusted"]


class KernelMistake(Exception):
    """A kernel that Triton refuses: the line of the cell, the usual cause, and Triton's own words."""


def _device() -> torch.device:
    try:
        on_gpu = choice_here().mode == "cuda" and torch.cuda.device_count() > 0
    except ValueError:  # `mode` will say
        on_gpu = False
    return torch.device("cuda" if on_gpu else "cpu")


device = _device()  # where a kernel's tensors have to be


def are_compiled() -> bool:
    """Whether kernels run at full speed in this process, so that a whole model can run on them."""
    try:
        return mode() != "interpreted"
    except KernelsUnavailableError:
        return False


def how_kernels_run(trusts: bool = False) -> str:
    """A sentence or two for the notebook: how, and why so or why not at all.

    Args:
        trusts: Of launches within `trusted`.
    """
    try:
        how = mode()
    except KernelsUnavailableError as error:
        return f"Triton kernels are not run here: {error}"
    if how == "cuda":
        return f"Triton kernels are compiled, for {torch.cuda.get_device_name()}."
    if how == "cpu":
        yours = "run unchecked, for they have passed their checks" if trusts else "are checked while they run"
        return f"Triton kernels are compiled for this machine's processor. Yours {yours}."
    return f"Triton kernels are interpreted, {reason()}: right, and very slow. `print` and `assert` work."


_trusts: ContextVar[bool] = ContextVar("trusts", default=False)


@contextlib.contextmanager
def trusted() -> Iterator[None]:
    """Within it a learner's kernels are launched without checks, at full speed: those that have passed theirs."""
    token = _trusts.set(True)
    try:
        yield
    finally:
        _trusts.reset(token)


def _watch_learners_launches(kind: Any) -> None:
    """Replaces the methods of Triton's by which every kernel is launched: `kernel[grid](...)` and `run`."""
    launch = kind.run

    def run(kernel: Any, *args: Any, **options: Any) -> Any:
        file = kernel.fn.__code__.co_filename
        if _trusts.get() or not is_learners_file(file):
            return launch(kernel, *args, **options)
        __tracebackhide__ = True
        try:
            with _checks(kernel, args, options):
                return launch(kernel, *args, **options)
        except Exception as error:
            if file.startswith(LEARNERS_FILES):  # a check explains it by itself
                raise
            mistake = _explained(kernel, error)
        raise mistake.with_traceback(None) from None

    def with_grid(kernel: Any, grid: Any) -> Any:
        def launched(*args: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            return kernel.run(*args, grid=grid, warmup=False, **options)

        return launched

    kind.run, kind.__getitem__ = run, with_grid


def _refuse_without_grid(kernel: Any, *args: Any, **options: Any) -> None:
    raise KernelMistake(f"{kernel.fn.__name__}: the grid is missing: kernel[(programs,)](arguments).")


def _explained(kernel: Any, error: Exception) -> Exception:
    """A fault as it is; else what Triton says, with the cell's line and the usual cause if they are known."""
    inner: Any = error
    while type(inner).__module__.startswith("triton.") and inner.__cause__ is not None:
        inner = inner.__cause__  # the called function's error; the interpreter's reason
    if type(inner).__module__.startswith("triton_on_cpu."):  # a fault, which says all that is known
        return inner
    from triton.compiler.errors import CompilationError

    where = ""
    for each in (error, inner):
        if isinstance(each, CompilationError) and hasattr(each.node, "lineno"):
            where = _place(kernel, each)
    for frame in traceback.extract_tb(inner.__traceback__):
        if is_learners_file(frame.filename) and frame.name == kernel.fn.__name__:  # interpreted
            where = f"line {frame.lineno} of the cell: {frame.line}\n  "
    said = (getattr(inner, "error_message", None) or str(inner)).strip().splitlines() or [repr(inner)]
    cause = next((cause for pattern, cause in MISTAKES if re.search(pattern, said[-1])), "")
    if not cause and not where:
        return inner
    named = f"{kernel.fn.__name__}, {where}" if where else f"{kernel.fn.__name__}: "
    tritons = f"Triton says: {said[-1]}"
    return KernelMistake(f"{named}{cause} ({tritons})" if cause else f"{named}{tritons}")


def _place(kernel: Any, error: Any) -> str:
    """The line of a compiler's error, counted from the cell's top as Python's own errors count it."""
    functions = [kernel, *kernel.fn.__globals__.values()]
    owner = next((f for f in functions if isinstance(f, triton.JITFunction) and f.src == error.src), kernel)
    skipped = owner.raw_src.index(next(line for line in owner.raw_src if line.lstrip().startswith("def ")))
    number = owner.starting_line_number + skipped + error.node.lineno - 1
    return f"line {number} of the cell: {error.src.splitlines()[error.node.lineno - 1].strip()}\n  "


@contextlib.contextmanager
def _checks(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Iterator[None]:
    """How a learner's launch is checked in this process. On a GPU it is not."""
    if isinstance(kernel, triton.JITFunction):
        if not getattr(triton.runtime.driver._active, "runs_on_cpu", False):
            yield
            return
        import triton_on_cpu

        with triton_on_cpu.checked(LAUNCH_LIMIT_S):
            yield
        return
    from triton.runtime import interpreter

    before = interpreter._interpreter
    given = dict(zip(kernel.arg_names, args, strict=False)) | options
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    interpreter._interpreter = _bounded(before, kernel, tensors)
    try:
        yield
    finally:
        interpreter._interpreter = before


def _bounded(memory: Any, kernel: Any, tensors: dict[str, torch.Tensor]) -> SimpleNamespace:
    """The interpreter's access to memory, which refuses addresses outside of the tensors that were passed."""
    import numpy as np
    from triton.runtime import interpreter

    from triton_on_cpu.checks import Access, out_of_bounds, span_bytes

    def require_inside(verb: str, addresses: Any, mask: Any) -> None:
        wanted = np.broadcast_to(addresses, np.broadcast_shapes(addresses.shape, mask.shape))[np.asarray(mask, bool)]
        inside = np.zeros(wanted.shape, bool)
        for tensor in tensors.values():
            inside |= (wanted >= tensor.data_ptr()) & (wanted < tensor.data_ptr() + span_bytes(tensor))
        if inside.all():
            return
        address = int(wanted[~inside][0])
        frame: Any = sys._getframe()
        while frame.f_back is not None and not is_learners_file(frame.f_code.co_filename):
            frame = frame.f_back
        file, line = frame.f_code.co_filename, frame.f_lineno
        name, tensor = min(tensors.items(), key=lambda item: abs(item[1].data_ptr() - address))
        program = interpreter.interpreter_builder.grid_idx
        access = Access(kernel.fn.__name__, tuple(program), verb, file, line)
        raise out_of_bounds(access, name, tensor, (address - tensor.data_ptr()) // tensor.element_size())

    def watched(access: str, verb: str, at: int, mask_at: int | None) -> Any:
        """One of the memory's functions, whose argument `at` has the addresses and `mask_at` which of them count."""

        def call(*args: Any) -> Any:
            require_inside(verb, args[at], np.ones_like(args[at], bool) if mask_at is None else args[mask_at])
            return getattr(memory, access)(*args)

        return call

    return SimpleNamespace(
        load=watched("load", "reads", 0, 1),
        store=watched("store", "writes", 0, 2),
        atomic_rmw=watched("atomic_rmw", "updates", 1, 3),
        atomic_cas=watched("atomic_cas", "updates", 0, None),
    )


def _skip_unless_runnable(lines: list[str]) -> list[str]:
    """IPython's input transformer: a cell's lines, or one that says why it is not run."""
    comments = itertools.takewhile(lambda line: line.startswith("#"), lines)
    if not any(line.rstrip() == NEEDS_TRITON for line in comments):
        return lines
    try:
        mode()
    except KernelsUnavailableError as error:
        return [f"print({f'not run here: {error}'!r})\n"]
    return lines


def _say_usual_cause(shell: Any, kind: Any, error: BaseException, trace: Any, tb_offset: Any = None) -> None:
    """IPython's handler of a cell's TypeError: a missing @triton.jit is seen outside of any launch."""
    pattern, cause = MISTAKES[0]
    if re.search(pattern, str(error)):
        error.args = (f"{error}. {cause}",)
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _install() -> None:
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    shell = get_ipython()
    if shell is not None and _skip_unless_runnable not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(_skip_unless_runnable)
        shell.set_custom_exc((TypeError,), _say_usual_cause)


_install()
if IMPORT_ERROR is None:
    from triton.runtime.interpreter import InterpretedFunction

    for _kind in (triton.JITFunction, InterpretedFunction):
        _watch_learners_launches(_kind)
    triton.JITFunction.__call__ = _refuse_without_grid
