"""Triton in a notebook: the same cell runs on a GPU, compiled for the CPU, or interpreted.

    from twophase_labs.machine.kernels import device, tl, triton

Import it before anything that imports triton: how kernels run is decided when twophase_kernels is imported, and fixed
when triton is (see `twophase_kernels.choice`). To use `print` and `assert` in a kernel, set TWOPHASE_KERNELS to
'interpreted' in the first cell, and restart.

Compiled for the CPU, each launch of a kernel that a learner's cell defines is checked: an access outside of a tensor,
or a loop without an end, is a Python error. The engine's kernels run unchecked.

Where kernels cannot run at all (macOS, Windows), a cell that launches one would stop 'Run All'. Such a cell begins with
the comment `# needs: triton`; there it prints why it was not run, and the notebook goes on.
"""

import itertools
import sys
from typing import Any

import torch

from twophase_kernels._triton import IMPORT_ERROR, KernelsUnavailableError, mode, reason, tl, triton
from twophase_kernels.choice import choice_here
from twophase_labs.machine.guard import is_learners_file

NEEDS_TRITON = "# needs: triton"
LAUNCH_LIMIT_S = 10  # of a checked launch, by the clock

__all__ = ["device", "how_kernels_run", "tl", "triton"]


def _device() -> torch.device:
    try:
        on_gpu = choice_here().mode == "cuda" and torch.cuda.device_count() > 0
    except ValueError:  # `mode` will say
        on_gpu = False
    return torch.device("cuda" if on_gpu else "cpu")


device = _device()  # where a kernel's tensors have to be


def how_kernels_run() -> str:
    """A sentence or two for the notebook: how, and why so or why not at all."""
    try:
        how = mode()
    except KernelsUnavailableError as error:
        return f"Triton kernels are not run here: {error}"
    if how == "cuda":
        return f"Triton kernels are compiled, for {torch.cuda.get_device_name()}."
    if how == "cpu":
        return "Triton kernels are compiled for this machine's processor. Yours are checked while they run."
    return f"Triton kernels are interpreted, {reason()}: right, and very slow. `print` and `assert` work."


def _check_learners_launches() -> None:
    """Replaces the method of Triton's by which every kernel is launched."""
    launch = triton.JITFunction.run

    def run(kernel: Any, *args: Any, **options: Any) -> Any:
        on_cpu = getattr(triton.runtime.driver._active, "runs_on_cpu", False)
        if not on_cpu or not is_learners_file(kernel.fn.__code__.co_filename):
            return launch(kernel, *args, **options)
        import triton_on_cpu

        with triton_on_cpu.checked(LAUNCH_LIMIT_S):
            return launch(kernel, *args, **options)

    triton.JITFunction.run = run


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


def _install() -> None:
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    shell = get_ipython()
    if shell is not None and _skip_unless_runnable not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(_skip_unless_runnable)


_install()
if IMPORT_ERROR is None:
    _check_learners_launches()
