"""Triton in a notebook: the same cell is compiled on a GPU and interpreted without one.

    from twophase_labs.machine.kernels import device, tl, triton

Import it before anything that imports triton: which of the two happens is fixed when triton is first imported.

Where kernels cannot run at all (macOS, Windows), a cell that launches one would stop 'Run All'. Such a cell begins with
the comment `# needs: triton`; there it prints why it was not run, and the notebook goes on.
"""

import itertools
import os
import sys

import torch

if "triton" not in sys.modules and torch.cuda.device_count() == 0:
    os.environ.setdefault("TRITON_INTERPRET", "1")

from twophase_kernels._triton import INTERPRET_ON, KernelsUnavailableError, mode, tl, triton

NEEDS_TRITON = "# needs: triton"

__all__ = ["device", "how_kernels_run", "tl", "triton"]


def _device() -> torch.device:
    interpreted = os.environ.get("TRITON_INTERPRET", "").lower() in INTERPRET_ON
    return torch.device("cpu" if interpreted or torch.cuda.device_count() == 0 else "cuda")


device = _device()  # where a kernel's tensors have to be


def how_kernels_run() -> str:
    """One sentence for the notebook: compiled, interpreted, or why not at all."""
    try:
        how = mode()
    except KernelsUnavailableError as error:
        return f"Triton kernels are not run here: {error}"
    if how == "cpu":
        return "Triton kernels are compiled, for this machine's processor."
    if how == "cuda":
        return f"Triton kernels are compiled, for {torch.cuda.get_device_name()}."
    return "Triton kernels are interpreted on the CPU: the same results, much more slowly."


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
