"""Prefill in one process, decode in another, held against one engine that does both."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from twophase_labs.many_machines import lossy_ranks
from twophase_labs.many_machines.apart_ranks import PROMPTS, WATCHED, answers
from twophase_labs.many_machines.one_process import engine
from twophase_labs.many_machines.own_source import write_module
from twophase_labs.many_machines.two_processes import said_by_rank_0, why_not


@dataclass(frozen=True)
class Apart:
    """What one engine answered, and two of them together; times are the best of four, of the longest prompt.

    `apart` is None where two processes could not be run here, and `why_not` says why.

    Attributes:
        prefill_s: From the prompt's first chunk to its first token, on the prefill side.
        pack_s, send_s: To copy blocks into buffers, and to send these; `late_s` is what came after the last layer.
    """

    together: list[list[int]]
    apart: list[list[int]] | None
    num_bytes: int = 0
    prefill_s: float = 1.0
    pack_s: float = 0.0
    send_s: float = 0.0
    late_s: float = 0.0
    why_not: str = ""

    @property
    def lines(self) -> str:
        if self.apart is None:
            return f"not run here: {self.why_not}"
        num_tokens = len(PROMPTS[WATCHED])
        return (
            f"a prompt of {num_tokens} tokens, {self.num_bytes:,} bytes of blocks\n"
            f"  to compute it          {1e3 * self.prefill_s:7.1f} ms\n"
            f"  to copy its blocks out {1e3 * self.pack_s:7.1f} ms\n"
            f"  to send them           {1e3 * self.send_s:7.1f} ms\n"
            f"  ... after the last layer {1e3 * self.late_s:5.1f} ms"
        )


@cache
def apart() -> Apart:
    """The same prompts on one engine here, and on two processes."""
    together = answers(engine())
    if why_not():
        return Apart(together, None, why_not=why_not())
    said = said_by_rank_0("twophase_labs.many_machines.apart_ranks")
    moved = said["transfer"]
    return Apart(
        together,
        said["token_ids"],
        int(moved["num_bytes"]),
        *(moved[name] for name in ("prefill_s", "pack_s", "send_s", "late_s")),
    )


@dataclass(frozen=True)
class Handed:
    """What one engine generates alone, and what two processes generated; `orders` is what Transfer said, by prompt."""

    alone: list[list[int]]
    apart: list[list[int]] | None
    orders: Sequence[Sequence[str]] = ()
    num_messages: int = 0
    num_bytes: int = 0
    why_not: str = ""


def in_two_processes(take_layer: Callable[..., Any], put_layer: Callable[..., Any], transfer: type) -> Handed:
    """Give the cells that define these to two ranks (`lossy_ranks`), and wait for what rank 0 says."""
    alone = answers(engine(), lossy_ranks.PROMPTS)
    if why_not():
        return Handed(alone, None, why_not=why_not())
    with tempfile.TemporaryDirectory(prefix="twophase_own_") as name:
        path = Path(name) / "own_parts.py"
        write_module(path, (take_layer, put_layer, transfer))
        said = said_by_rank_0("twophase_labs.many_machines.lossy_ranks", str(path))
    return Handed(alone, **said)
