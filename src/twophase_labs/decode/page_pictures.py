"""Pictures of pages: a sequence that grows into them, who held which over a history, and forks that share them."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from twophase_labs.machine.pictures import COLOURS, EMPTY, INK, LINE

HOLDERS = COLOURS[:6]  # yellow is too pale for white letters


def draw_growth(lengths: Sequence[int], block_size: int, num_blocks: int = 3) -> Figure:
    """The blocks of one sequence at several lengths; the token that came last is darker."""
    figure, axes = plt.subplots(figsize=(9, 0.8 + 0.55 * len(lengths)), facecolor="white")
    for row, length in enumerate(lengths):
        taken = -(-length // block_size)
        for block in range(num_blocks):
            left = block * (block_size + 0.7)
            if block < taken:
                axes.add_patch(Rectangle((left - 0.06, row - 0.06), block_size + 0.06, 0.92, facecolor="none", ec=INK))
            else:
                axes.text(left + block_size / 2, row + 0.4, "not taken", ha="center", va="center", color=LINE)
            for offset in range(block_size if block < taken else 0):
                position = block * block_size + offset
                is_new, is_used = row > 0 and position >= lengths[row - 1], position < length
                colour = (COLOURS[5] if is_new else COLOURS[4]) if is_used else EMPTY
                axes.add_patch(Rectangle((left + offset, row), 0.94, 0.8, facecolor=colour))
                if is_used:
                    weight = "bold" if is_new else "normal"
                    axes.text(left + offset + 0.47, row + 0.4, str(position), ha="center", va="center", weight=weight)
    axes.set_yticks([row + 0.4 for row in range(len(lengths))], [f"{length} tokens" for length in lengths])
    middles = [block * (block_size + 0.7) + block_size / 2 for block in range(num_blocks)]
    axes.set_xticks(middles, [f"block {block} of the sequence" for block in range(num_blocks)])
    axes.set(xlim=(-0.2, num_blocks * (block_size + 0.7)), ylim=(len(lengths), -0.15))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(f"Blocks of {block_size} slots, taken when a token needs one; bold is new", loc="left")
    return _done(figure)


def draw_history(frames: Sequence[Mapping[str, Sequence[int]]], num_blocks: int, title: str) -> Figure:
    """Who holds which block after each event: a letter per sequence, a number of holders where it is shared."""
    names = list(dict.fromkeys(name for frame in frames for name in frame))
    colour_of = {name: HOLDERS[i % len(HOLDERS)] for i, name in enumerate(names)}
    figure, axes = plt.subplots(figsize=(10.5, 0.9 + 0.3 * num_blocks), facecolor="white")
    for at, frame in enumerate(frames):
        holders: dict[int, list[str]] = {}
        for name, block_ids in frame.items():
            for block in block_ids:
                holders.setdefault(block, []).append(name)
        for block in range(num_blocks):
            held_by = holders.get(block, [])
            colour = colour_of[held_by[0]] if held_by else EMPTY
            hatch = "///" if len(held_by) > 1 else None
            axes.add_patch(
                Rectangle((at, block), 1, 0.92, facecolor=colour, alpha=0.7, hatch=hatch, edgecolor="white", lw=0.4)
            )
            text = held_by[0] if len(held_by) == 1 else str(len(held_by)) if held_by else ""
            axes.text(at + 0.5, block + 0.46, text, ha="center", va="center", fontsize=7, color=INK)
    axes.set(xlim=(0, len(frames)), ylim=(num_blocks, -0.1), xlabel="event", ylabel="block")
    axes.set_yticks([block + 0.46 for block in range(num_blocks)], [str(block) for block in range(num_blocks)])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(title, loc="left")
    return _done(figure)


def draw_reads(weights: Tensor, lengths: Sequence[int], page: int, title: str) -> Figure:
    """Which slots of the pool each sequence reads: `weights[b, slot]`, darker is more."""
    num_sequences, num_slots = weights.shape
    figure, axes = plt.subplots(figsize=(10.5, 1.3 + 0.45 * num_sequences), facecolor="white")
    axes.imshow(weights.sqrt().numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for block in range(num_slots // page):
        axes.axvline(block * page - 0.5, color=COLOURS[0], linewidth=1.2)
    names = [f"sequence {b}, {length} token{'s' * (length > 1)}" for b, length in enumerate(lengths)]
    axes.set_yticks(range(num_sequences), names)
    axes.set_yticks([row - 0.5 for row in range(1, num_sequences)], minor=True)
    axes.grid(which="minor", axis="y", color=LINE, linewidth=0.8)
    centres = [block * page + (page - 1) / 2 for block in range(num_slots // page)]
    axes.set_xticks(centres, [f"page {block}" for block in range(num_slots // page)])
    axes.set_xlabel(f"slot of the pool, {page} to a page; darker is more weight")
    axes.tick_params(length=0, which="both")
    axes.set_title(title, loc="left")
    return _done(figure)


def _done(figure: Figure) -> Figure:
    """Closed for pyplot, or a notebook would show it twice."""
    figure.tight_layout()
    plt.close(figure)
    return figure
