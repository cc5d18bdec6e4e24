"""Pictures of blocks: a sequence that grows into them, a copy on write, which sequences hold which."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from twophase_labs.kit.draw import done
from twophase_labs.machine.pictures import COLOURS, EMPTY, INK, LINE


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
    return done(figure)


def draw_copy_on_write() -> Figure:
    """A of ten tokens, forked to B, before and after both have written; the block that is copied is outlined."""
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 2.3), facecolor="white")
    lefts = (0.0, 4.6, 9.2, 15.2)  # of the four blocks: room for an arrow before the last
    shared, own_a, own_b = COLOURS[4], COLOURS[0], COLOURS[1]
    panel_titles = ("Just after the fork: nothing is copied", "Both have written token 10: one block is copied")
    for axes, title, is_after in zip(panels, panel_titles, (False, True), strict=True):
        for row, (name, ids) in enumerate({"A": (0, 1, 2), "B": (0, 1, 3 if is_after else 2)}.items()):
            text = f"table of {name}: {', '.join(map(str, ids))}"
            axes.text(-0.1, 0.3 + row * 0.7, text, va="center", color=INK, fontsize=10)
        for block in range(4):
            num_tokens = (4, 4, 3, 3)[block] if is_after else (4, 4, 2, 0)[block]
            for offset in range(4):
                is_used = offset < num_tokens
                is_new = is_after and block >= 2 and offset == 2
                colour = (own_a if block == 2 else own_b) if is_new else shared if is_used else EMPTY
                left = lefts[block] + offset
                axes.add_patch(Rectangle((left, 2), 0.92, 0.9, facecolor=colour, alpha=0.85))
                if is_used:
                    position = 4 * min(block, 2) + offset
                    label = f"{position}{'AB'[block - 2] if is_new else ''}"
                    size = 7.5 if is_new else 9
                    axes.text(left + 0.46, 2.45, label, ha="center", va="center", color=INK, fontsize=size)
            owners = ("A, B", "A, B", "A" if is_after else "A, B", "B" if is_after else "free")[block]
            axes.text(
                lefts[block] + 2, 3.25, f"block {block}: {owners}", ha="center", va="center", fontsize=9, color=INK
            )
        if is_after:
            axes.add_patch(Rectangle((15.05, 1.85), 4.2, 1.2, facecolor="none", edgecolor=INK, linewidth=2))
            axes.annotate("", (15.0, 2.45), (13.2, 2.45), arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 2})
            axes.text(14.1, 2.15, "copy", ha="center", va="center", color=INK, fontsize=8)
        axes.set(xlim=(-0.3, 19.4), ylim=(3.6, -0.1), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_title(title, loc="left", fontsize=10)
    return done(figure)


def draw_history(frames: Sequence[Mapping[str, Sequence[int]]], num_blocks: int, title: str) -> Figure:
    """Which sequences hold which block after each event: a letter and a colour for each, hatched where shared."""
    names = list(dict.fromkeys(name for frame in frames for name in frame))
    palette = plt.get_cmap("tab10")  # neighbours differ; more than ten sequences begin again
    colour_of = {name: to_hex(palette(i % 10)) for i, name in enumerate(names)}
    figure, axes = plt.subplots(figsize=(10.5, 1.2 + 0.34 * num_blocks), facecolor="white")
    for at, frame in enumerate(frames):
        holders: dict[int, list[str]] = {}
        for name, block_ids in frame.items():
            for block in block_ids:
                holders.setdefault(block, []).append(name)
        for block in range(num_blocks):
            held_by = holders.get(block, [])
            colour = colour_of.get(held_by[0], LINE) if held_by else EMPTY
            hatch = "///" if len(held_by) > 1 else None
            axes.add_patch(
                Rectangle((at, block), 0.96, 0.92, facecolor=colour, alpha=0.6, hatch=hatch, edgecolor="white", lw=0.4)
            )
            size = 9 if len(held_by) < 4 else 6.5
            text = axes.text(at + 0.48, block + 0.46, "".join(held_by), ha="center", va="center", size=size, color=INK)
            if hatch:
                text.set_bbox({"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 0.8})
    axes.set(xlim=(0, len(frames)), ylim=(num_blocks, -0.1), xlabel="event", ylabel="block of the pool")
    axes.set_yticks([block + 0.46 for block in range(num_blocks)], [str(block) for block in range(num_blocks)])
    axes.set_xticks([at + 0.48 for at in range(0, len(frames), 5)], [str(at + 1) for at in range(0, len(frames), 5)])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(title, loc="left", pad=24)  # above the legend
    handles = [
        Patch(facecolor=EMPTY, label="free"),
        Patch(facecolor=LINE, alpha=0.6, label="held by the sequence of that letter"),
        Patch(facecolor=LINE, alpha=0.6, hatch="///", edgecolor="white", label="shared by those letters"),
    ]
    axes.legend(handles=handles, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1.0), fontsize=9)
    return done(figure)


def fullest_moment(cache: Any) -> dict[str, tuple[tuple[int, ...], int]]:
    """The tables of this cache at the moment when the most blocks are in use, noted from now on: name -> (block ids,
    tokens). Tables are called 'A', 'B', ... in the order of opening."""
    tables: dict[str, tuple[tuple[int, ...], int]] = {}
    grow, num_free = cache.grow, [cache.num_blocks]

    def noted(table: Any, num_tokens: int) -> Any:
        copies = grow(table, num_tokens)
        if cache.num_free_blocks <= num_free[0]:
            num_free[0], grown = cache.num_free_blocks, [each for each in cache.tables if each.num_tokens]
            tables.clear()
            tables.update({chr(ord("A") + i): (each.block_ids, each.num_tokens) for i, each in enumerate(grown)})
        return copies

    cache.grow = noted
    return tables
