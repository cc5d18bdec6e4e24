"""Pictures of a replayed cache: who holds which slot, when, and what the holes look like."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from twophase_labs.autoregression.arrivals import Replay, Snapshot
from twophase_labs.machine.pictures import COLOURS, EMPTY, INK, LINE

HOLDERS = COLOURS[:6]  # yellow and its pale shade are too alike in grey
UNWRITTEN = 0.28  # how much of a request's colour a slot shows that is held and not written


def draw_slots(snapshot: Snapshot, wanted: int, title: str) -> Figure:
    """One moment of a cache as a row of slots, the lengths of its holes, and the request that asks to come in."""
    figure, axes = plt.subplots(figsize=(10, 2.1), facecolor="white")
    filled = {slot for name, slots in snapshot.slots.items() for slot in slots[: snapshot.written[name]]}
    for index, (name, slots) in enumerate(snapshot.slots.items()):
        colour = HOLDERS[index % len(HOLDERS)]
        for slot in slots:
            alpha = 0.85 if slot in filled else UNWRITTEN
            axes.add_patch(Rectangle((slot, 1), 0.9, 0.8, facecolor=colour, alpha=alpha))
        axes.text(sum(slots) / len(slots) + 0.5, 2.0, name, ha="center", color=INK)
    for start, length in holes(snapshot.owners):
        axes.add_patch(Rectangle((start, 1), length - 0.1, 0.8, facecolor=EMPTY, edgecolor=LINE, linewidth=0.8))
        axes.text(start + length / 2, 1.4, str(length), ha="center", va="center", color=INK)
    axes.add_patch(Rectangle((0, 0), wanted - 0.1, 0.6, facecolor="white", edgecolor=INK, hatch="///", linewidth=1))
    axes.text(wanted + 1, 0.3, f"asks for {wanted} slots in one piece", va="center", color=INK)
    axes.set(xlim=(-0.5, snapshot.num_slots), ylim=(-0.1, 2.4), yticks=[], xlabel="slot")
    axes.set_title(title, loc="left")
    axes.spines[["left", "right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure


def holes(owners: Sequence[str | None]) -> list[tuple[int, int]]:
    """(start, length) of each run of free slots."""
    found, start = [], 0
    for owner, run in groupby(owners):
        length = len(list(run))
        if owner is None:
            found.append((start, length))
        start += length
    return found


def draw_replay(result: Replay, title: str, fragmented: Collection[str] = ()) -> Figure:
    """Slots over time, a colour per request: full where a slot holds a token, pale where it is empty.

    Above them the rejections; those in `fragmented` found enough free slots, but not in one piece.
    """
    names = list(dict.fromkeys(name for snapshot in result.snapshots for name in snapshot.slots))
    colour_of = {name: np.array(to_rgb(HOLDERS[i % len(HOLDERS)])) for i, name in enumerate(names)}
    num_slots = result.snapshots[0].num_slots
    image = np.tile(np.array(to_rgb(EMPTY)), (num_slots, len(result.snapshots), 1))
    for step, snapshot in enumerate(result.snapshots):
        for name, slots in snapshot.slots.items():
            num_written = snapshot.written[name]
            pale = 1 - UNWRITTEN * (1 - colour_of[name])
            image[list(slots[:num_written]), step] = colour_of[name]
            image[list(slots[num_written:]), step] = pale
    figure, axes = plt.subplots(figsize=(10, 3.4), facecolor="white")
    axes.imshow(image, aspect="auto", interpolation="nearest", origin="lower")
    above = num_slots * 1.04
    rejections = []
    for marker, label, is_fragmented in (("x", "rejected", False), ("D", "rejected, enough slots free", True)):
        steps = [step for name, step in result.rejected_at.items() if (name in fragmented) == is_fragmented]
        rejections += axes.plot(steps, [above] * len(steps), marker, color=INK, markersize=5, label=label)
    axes.set(xlabel="step", ylabel="slot", ylim=(-0.5, num_slots * 1.09))
    axes.set_title(title, loc="left", pad=24)
    pale = 1 - UNWRITTEN * (1 - np.array(to_rgb(HOLDERS[0])))
    meanings: dict[str, Any] = {"holds a token": HOLDERS[0], "set aside, empty": pale, "free": EMPTY}
    patches = [Patch(facecolor=colour, edgecolor=LINE, label=name) for name, colour in meanings.items()]
    handles = [*patches, *rejections]
    axes.legend(
        handles=handles,
        frameon=False,
        ncols=5,
        loc="lower right",
        bbox_to_anchor=(1, 0.98),
    )
    figure.tight_layout()
    return figure
