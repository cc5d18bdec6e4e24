"""A learner's functions for another process: the notebook's cells that define them, as a module."""

import linecache
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# What the notebook's setup cells have imported before these cells ran.
PREAMBLE = (
    "import math",
    "import torch",
    "import torch.nn.functional as F",
    "from twophase_labs.many_machines.layer_blocks import stored",
)


def cell_of(definition: Callable[..., Any] | type) -> str:
    """The whole cell in which a function or class was defined, helpers included.

    Raises:
        ValueError: It was not defined in a cell whose text is known.
    """
    functions = vars(definition).values() if isinstance(definition, type) else (definition,)
    codes = [function.__code__ for function in functions if hasattr(function, "__code__")]
    text = "".join(linecache.getlines(codes[0].co_filename)) if codes else ""
    if not text:
        raise ValueError(f"the source of {definition!r} is not known; define it in a cell of the notebook")
    return text


def write_module(path: Path, definitions: Sequence[Callable[..., Any] | type]) -> None:
    """Write the cells of these definitions, each cell once."""
    cells = list(dict.fromkeys(cell_of(definition) for definition in definitions))
    path.write_text("\n\n".join(["\n".join(PREAMBLE), *cells]) + "\n", encoding="utf-8")
