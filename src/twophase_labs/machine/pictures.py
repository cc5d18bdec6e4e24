"""Pictures drawn from what the engine really did."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from twophase_tools.colours import COLOURS, EMPTY, INK, LINE

OWNERS = (*COLOURS[2:4], COLOURS[6], COLOURS[5], COLOURS[0])  # none of the two phases' colours


def draw_block_tables(
    tables: Mapping[str, tuple[Sequence[int], int]], *, num_blocks: int, block_size: int, columns: int = 8
) -> Figure:
    """Block tables beside the pool they point into.

    Args:
        tables: For each sequence's name its block ids and how many tokens it holds.
        num_blocks: Blocks to show; every id must be below it.
        block_size: Slots per block.
        columns: Blocks per row of the pool.
    """
    owners: dict[int, list[tuple[str, int]]] = {}  # of each block, sequences and the block's number in them
    filled: dict[int, int] = {}
    for name, (block_ids, num_tokens) in tables.items():
        for logical, block in enumerate(block_ids):
            if not 0 <= block < num_blocks:
                raise ValueError(f"{name} has block {block}, and the picture shows blocks 0 to {num_blocks - 1}")
            owners.setdefault(block, []).append((name, logical))
            filled[block] = max(filled.get(block, 0), min(block_size, num_tokens - logical * block_size))
    colour_of = {name: OWNERS[i % len(OWNERS)] for i, name in enumerate(tables)}

    num_rows = max(-(-num_blocks // columns), len(tables), 2)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 1.1 + 0.56 * num_rows), width_ratios=(1, 1.5), facecolor="white"
    )
    _draw_tables(left, tables, colour_of)
    _draw_pool(right, owners, filled, colour_of, num_blocks, block_size, columns)
    figure.tight_layout()
    return figure


def _draw_tables(axes: Axes, tables: Mapping[str, tuple[Sequence[int], int]], colour_of: Mapping[str, str]) -> None:
    widest = max((len(block_ids) for block_ids, _ in tables.values()), default=1)
    for row, (name, (block_ids, num_tokens)) in enumerate(tables.items()):
        axes.text(-0.15, row + 0.45, f"{name}, {num_tokens} tokens", ha="right", va="center", color=INK)
        for logical, block in enumerate(block_ids):
            axes.add_patch(Rectangle((logical, row), 0.9, 0.9, facecolor=colour_of[name], edgecolor=LINE, alpha=0.75))
            axes.text(logical + 0.45, row + 0.45, str(block), ha="center", va="center", color=INK)
    axes.set(xlim=(-0.1, widest), ylim=(max(3, len(tables)), -0.1), xticks=[i + 0.45 for i in range(widest)], yticks=[])
    axes.set_xticklabels([str(i) for i in range(widest)])
    axes.set_xlabel("block of the sequence", fontsize=9)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_title("Block tables", loc="left", fontsize=11)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _draw_pool(
    axes: Axes,
    owners: Mapping[int, Sequence[tuple[str, int]]],
    filled: Mapping[int, int],
    colour_of: Mapping[str, str],
    num_blocks: int,
    block_size: int,
    columns: int,
) -> None:
    for block in range(num_blocks):
        row, column = divmod(block, columns)
        axes.add_patch(Rectangle((column, row), 0.92, 0.86, facecolor=EMPTY, edgecolor=LINE, linewidth=0.8))
        owned = owners.get(block, [])
        names = [f"{name}{logical}" for name, logical in owned]
        if owned:
            share = 0.92 * filled[block] / block_size
            for i, (name, _) in enumerate(owned):
                height = 0.86 / len(owned)
                colour = colour_of[name]
                axes.add_patch(Rectangle((column, row + i * height), share, height, facecolor=colour, alpha=0.75))
            text = "\n".join(", ".join(names[i : i + 2]) for i in range(0, len(names), 2))
            size = 9 if len(names) < 3 else 7.5
            axes.text(column + 0.46, row + 0.5, text, ha="center", va="center", fontsize=size, color=INK)
        number_colour = INK if names else LINE
        axes.text(column + 0.05, row + 0.05, str(block), ha="left", va="top", fontsize=7, color=number_colour)
    axes.set(xlim=(-0.05, columns), ylim=(-(-num_blocks // columns), -0.05), xticks=[], yticks=[])
    axes.set_title(f"The pool: {num_blocks} blocks of {block_size} slots", loc="left", fontsize=11)
    for name in [*colour_of][:1]:
        axes.set_xlabel(f"{name}0: block 0 of {name}. The coloured part of a block is in use.", loc="left", fontsize=9)
    axes.spines[:].set_visible(False)
