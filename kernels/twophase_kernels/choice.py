"""How Triton kernels are to run in a process: for a GPU, compiled for the CPU, or interpreted; and why.

`TWOPHASE_KERNELS` names a mode: cuda, cpu or interpreted. Where it is not set, `TRITON_INTERPRET=1` interprets; else
kernels run on a GPU where there is one; else they are compiled for the CPU where there is a C compiler; else they are
interpreted. This must be known before triton is imported, so this module does not import it.
"""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

INTERPRET_ON = frozenset({"1", "true", "on", "yes", "y"})
INTERPRET_OFF = frozenset({"", "0", "false", "off", "no", "n"})
MODES = ("cuda", "cpu", "interpreted")


@dataclass(frozen=True)
class Choice:
    """A mode, and the reason for it as the end of a sentence, 'because there is a GPU'."""

    mode: Literal["cuda", "cpu", "interpreted"]
    reason: str


def choose(environment: Mapping[str, str], has_gpu: bool, has_compiler: bool) -> Choice:
    """The mode of a process with this environment.

    Raises:
        ValueError: A value is not one of a variable's, or the two variables contradict each other.
    """
    named, value = environment.get("TWOPHASE_KERNELS", ""), environment.get("TRITON_INTERPRET")
    if named not in ("", *MODES):
        raise ValueError(
            f"TWOPHASE_KERNELS={named!r} is not a mode: set it to {', '.join(MODES[:-1])} or {MODES[-1]}, or unset it."
        )
    if value is not None and value.lower() not in INTERPRET_ON | INTERPRET_OFF:
        raise ValueError(
            f"TRITON_INTERPRET={value!r} is a value that triton does not understand and silently takes for 0. "
            "Set it to 1 (interpreter) or 0 (compile), and start Python again."
        )
    interpret = None if not value else value.lower() in INTERPRET_ON
    if named and interpret is not None and interpret != (named == "interpreted"):
        raise ValueError(
            f"TWOPHASE_KERNELS={named} and TRITON_INTERPRET={value} are both set, and contradict each other: "
            "unset one, and start Python again."
        )
    if named:
        return Choice(named, f"because TWOPHASE_KERNELS={named}")
    if interpret:
        return Choice("interpreted", f"because TRITON_INTERPRET={value}")
    if has_gpu:
        return Choice("cuda", "because there is a GPU")
    if has_compiler or interpret is False:
        return Choice("cpu", "because there is no GPU")
    return Choice("interpreted", "because there is neither a GPU nor a C compiler")


def choice_here() -> Choice:
    """`choose` for this process, as its environment is now but for what `interpret_here` has set."""
    environment = dict(os.environ)
    if _interprets_by_itself and environment.get("TRITON_INTERPRET") == "1":
        del environment["TRITON_INTERPRET"]
    return choose(environment, torch.cuda.device_count() > 0, has_compiler())


_interprets_by_itself = False


def interpret_here() -> None:
    """Triton, when it is imported, will interpret kernels in this process."""
    global _interprets_by_itself
    _interprets_by_itself = os.environ.get("TRITON_INTERPRET", "") == ""
    os.environ["TRITON_INTERPRET"] = "1"  # what triton reads when it is imported


def has_compiler() -> bool:
    """Whether triton_on_cpu's `toolchain` would find a C compiler, or a variable CC to complain about."""
    found = os.environ.get("CC") or any(shutil.which(name) for name in ("gcc", "clang", "cc"))
    return bool(found or importlib.util.find_spec("ziglang"))
