"""Pictures of the lab's second half: slots, batches, chunks, programs, and the rate by chunk size."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator
from torch import Tensor

from twophase_labs.kit.draw import done
from twophase_labs.machine.checks import Draw
from twophase_labs.machine.kernels import device
from twophase_labs.machine.pictures import COLOURS, EMPTY, INK, LINE
from twophase_labs.prefill.launch import launch_paged_prefill
from twophase_labs.prefill.weights import names_of_columns, names_of_rows, page_borders, weighing_batch, weights_of

NAMES = "ABCDEFGH"


def draw_programs(query_lens: Sequence[int], cached: Sequence[int], group: int, block_m: int) -> Figure:
    """Each sequence's tokens, cached and new; the flat batch cut into the programs' tiles; the rows of one program."""
    block_q = block_m // group
    figure, (top, bottom, rows) = plt.subplots(
        3, 1, figsize=(9.5, 5.2), height_ratios=(len(query_lens), 1.3, 1.2), facecolor="white", layout="constrained"
    )
    longest = max(q + c for q, c in zip(query_lens, cached, strict=True))
    for row, (new, old) in enumerate(zip(query_lens, cached, strict=True)):
        for position in range(new + old):
            colour = COLOURS[row] if position >= old else EMPTY
            _cell(top, position, row, str(position), colour)
    top.set(xlim=(-0.1, longest), ylim=(len(query_lens), -0.1), xlabel="position in the sequence")
    top.set_title("Sequences: grey tokens are in the cache from before, coloured ones are new", loc="left", fontsize=10)
    top.set_yticks([r + 0.45 for r in range(len(query_lens))], [f"sequence {NAMES[r]}" for r in range(len(query_lens))])
    token = 0
    for row, (new, old) in enumerate(zip(query_lens, cached, strict=True)):
        for first in range(0, new, block_q):
            width = min(block_q, new - first)
            for i in range(width):
                _cell(bottom, token + first + i, 0, str(old + first + i), COLOURS[row])
            left = token + first
            box = Rectangle((left - 0.03, -0.05), width - 0.04, 1.0, fill=False, edgecolor=INK, linewidth=2)
            bottom.add_patch(box)
            label = f"tile {first // block_q}\nof {NAMES[row]}"
            bottom.text(left + width / 2 - 0.05, 1.1, label, ha="center", va="top", fontsize=8, color=INK)
        token += new
    bottom.set(xlim=(-0.1, token), ylim=(1.95, -0.15), yticks=[])
    bounds = [0, *np.cumsum(query_lens).tolist()]
    bottom.set_xticks(bounds, [str(b) for b in bounds])
    bottom.set_xlabel("token of the flat batch; the marks are cu_query_lens")
    title = f"The flat batch: a program per box and KV head (BLOCK_Q = {block_q}); numbers are positions"
    bottom.set_title(title, loc="left", fontsize=10)
    for row in range(block_m):
        token, head = block_q + row // group, row % group  # of tile 1
        text, colour = (f"token {token}\nhead {head}", COLOURS[0]) if row < block_q * group else ("idle", EMPTY)
        _cell(rows, row, 0, text, colour)
    rows.set(xlim=(-0.1, block_m), ylim=(1, -0.1), yticks=[], xlabel="row of the program")
    rows.set_xticks([row + 0.45 for row in range(block_m)], [str(row) for row in range(block_m)])
    title = f"Tile 1 of {NAMES[0]}, KV head 0: G = {group}, BLOCK_M = {block_m}; tokens are counted from chunk_start"
    rows.set_title(title, loc="left", fontsize=10)
    for axes in (top, bottom, rows):
        axes.spines[:].set_visible(False)
        axes.tick_params(axis="y", length=0)
    top.set_xticks([])
    return done(figure)


def draw_pipeline(stages: Sequence[int], load: float = 3.0, product: float = 1.0, num_tiles: int = 6) -> Figure:
    """When the tiles of K and V are on their way and when they are multiplied, with room for so many at a time.

    A load takes `load`, the products of a tile take `product`. Loads overlap one another; a tile's load starts as soon
    as there is room for it, and its products as soon as it is there and those of the tile before are done.
    """
    figure, panels = plt.subplots(
        len(stages), 1, figsize=(9.5, 1.9 * len(stages)), sharex=True, facecolor="white", layout="constrained"
    )
    for axes, num_stages in zip(np.atleast_1d(panels), stages, strict=True):
        ends: list[float] = []
        for tile in range(num_tiles):
            begin = ends[tile - num_stages] if tile >= num_stages else 0.0
            ready = max(begin + load, ends[-1] if ends else 0.0)
            axes.barh(tile, load, 0.8, begin, color=EMPTY, edgecolor=LINE, hatch="//")
            axes.barh(tile, product, 0.8, ready, color=COLOURS[0], edgecolor=INK)
            ends.append(ready + product)
        rows = "tile" if num_stages == 1 else "tiles"
        axes.set_title(f"room for {num_stages} {rows}: done after {ends[-1]:g}", loc="left", fontsize=10)
        axes.set(ylabel="tile of K, V", yticks=range(num_tiles))
        axes.invert_yaxis()
        axes.spines[["right", "top"]].set_visible(False)
    axes.set_xlabel("time (1 = the products of a tile)")
    meanings = [
        Patch(facecolor=EMPTY, edgecolor=LINE, hatch="//", label="on its way from memory"),
        Patch(facecolor=COLOURS[0], edgecolor=INK, label="multiplied"),
    ]
    np.atleast_1d(panels)[-1].legend(handles=meanings, frameon=False, loc="lower right")
    return done(figure)


def _cell(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    axes.add_patch(Rectangle((x, y), 0.9, 0.9, facecolor=colour, edgecolor=LINE, alpha=0.8))
    axes.text(x + 0.45, y + 0.47, text, ha="center", va="center", fontsize=8, color=INK)


def draw_reads(kernel: Any, query_lens: Sequence[int], cached: Sequence[int]) -> Figure:
    """The weight that each query of one KV head's first query head gives to each slot of that KV head."""
    batch = weighing_batch(Draw(5), query_lens, cached, heads=(2, 1), head_dim=64, page=4, num_pages=16)
    tensors: dict[str, Any] = {name: tensor.to(device) for name, tensor in batch.tensors.items()}
    out, _ = launch_paged_prefill(kernel, **tensors, scale=batch.scale, block_m=16, block_n=16)
    weights = weights_of(batch, out.cpu())[::2]
    columns, rows = names_of_columns(batch), names_of_rows(batch)[::2]
    shown = 4 * (1 + sum(-(-seq_len // 4) for seq_len in batch.seq_lens.tolist()))  # their blocks, and a free one
    figure, axes = plt.subplots(figsize=(9.5, 5.2), facecolor="white", layout="constrained")
    seen = weights[:, :shown] > 0
    # What is read at all has a shade of its own, however small its weight.
    shade = (0.25 + 0.75 * weights[:, :shown].clamp(0, 1) ** 0.5).where(seen, np.nan)
    colours = plt.get_cmap("Blues").with_extremes(bad="white")
    axes.imshow(shade, cmap=colours, vmin=0, vmax=1.25, aspect="auto")
    for border in page_borders(batch):
        if border < shown:
            axes.axvline(border - 0.5, color=LINE, linewidth=1.5)
    names = [name.partition(", block")[0] for name in columns[:shown]]
    axes.set_xticks(range(shown), [name.split()[-1] if " key " in name else "" for name in names], fontsize=9)
    for first in range(0, shown, 4):
        owner = names[first].split()[0] if " key " in names[first] else "free"
        page = columns[first].partition(", block ")[2].partition(",")[0]
        axes.text(first + 1.5, -0.75, f"{owner}: block {page}", ha="center", va="bottom", fontsize=9, color=INK)
    axes.set_yticks(range(len(rows)), [name.partition(", head")[0] for name in rows], fontsize=9)
    axes.set(xlabel="slots of the pool, block by block; the number is the key's position", ylabel="query")
    axes.set_title("Weights of query head 0: more colour is more, blank is never read", loc="left", fontsize=10, pad=22)
    handles = [
        Patch(facecolor=colours(shade / 1.25), edgecolor=LINE, label=name)
        for shade, name in ((0.28, "read, small weight"), (1.0, "read, large weight"))
    ]
    axes.legend(handles=[*handles, Patch(facecolor="white", edgecolor=LINE, label="not read")], fontsize=8)
    return done(figure)


def draw_slots(values: Tensor) -> Figure:
    """What stands in each slot of a small pool, [blocks, heads, slots]; 0 is empty."""
    num_pages, num_heads, page = values.shape
    figure, axes = plt.subplots(figsize=(9.5, 0.5 * num_heads + 1.5), facecolor="white", layout="constrained")
    for n in range(num_pages):
        for h in range(num_heads):
            for s in range(page):
                value = values[n, h, s].item()
                text, colour = (f"{value:g}", COLOURS[4]) if value else ("", EMPTY)
                _cell(axes, n * (page + 0.6) + s, h, text, colour)
        axes.text(n * (page + 0.6) + page / 2, -0.25, f"block {n}", ha="center", va="bottom", color=INK, fontsize=9)
    axes.set(xlim=(-0.2, num_pages * (page + 0.6)), ylim=(num_heads, -0.8), xticks=[])
    axes.set_yticks([h + 0.45 for h in range(num_heads)], [f"KV head {h}" for h in range(num_heads)])
    axes.set_xlabel("slots, block by block; the number is the token's key")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return done(figure)


def draw_padding(lengths: Sequence[int]) -> Figure:
    """The same prompts padded to the longest, and packed."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 2.3), width_ratios=(max(lengths), sum(lengths)), facecolor="white", layout="constrained"
    )
    token = 0
    for row, length in enumerate(lengths):
        for i in range(max(lengths)):
            _cell(left, i, row, f"{NAMES[row]}{i}" if i < length else "pad", COLOURS[row] if i < length else EMPTY)
        for i in range(length):
            _cell(right, token + i, 0, f"{NAMES[row]}{i}", COLOURS[row])
        token += length
    left.set(xlim=(-0.1, max(lengths)), ylim=(len(lengths), -0.1), yticks=[], xticks=[])
    left.set_xlabel("position in the prompt")
    left.set_title(f"padded: {len(lengths) * max(lengths)} positions", loc="left", fontsize=10)
    bounds = [0, *np.cumsum(lengths).tolist()]
    right.set(xlim=(-0.1, token + 0.1), ylim=(2, -1), yticks=[])
    right.set_xticks(bounds, [str(b) for b in bounds])
    right.set_xlabel("token of the batch; the marks are cu_query_lens")
    right.set_title(f"packed: {token} positions", loc="left", fontsize=10)
    for axes in (left, right):
        axes.spines[:].set_visible(False)
    return done(figure)


def draw_packed_mask(lengths: Sequence[int]) -> Figure:
    """Which key each query of a packed batch may see."""
    figure, axes = plt.subplots(figsize=(5.2, 4.8), facecolor="white", layout="constrained")
    names, first = [], 0
    for row, length in enumerate(lengths):
        for i in range(length):
            names.append(f"{NAMES[row]}{i}")
            for j in range(i + 1):
                axes.add_patch(Rectangle((first + j, first + i), 0.92, 0.92, facecolor=COLOURS[row], edgecolor=LINE))
        first += length
    for q in range(first):
        for k in range(first):
            axes.add_patch(Rectangle((k, q), 0.92, 0.92, facecolor=EMPTY, edgecolor=LINE, linewidth=0.4, zorder=0))
    axes.set(xlim=(-0.1, first), ylim=(first, -0.1), xlabel="key", ylabel="query", aspect="equal")
    axes.set_xticks([i + 0.45 for i in range(first)], names)
    axes.set_yticks([i + 0.45 for i in range(first)], names)
    axes.set_title("coloured: the query sees the key", loc="left", fontsize=10)
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    return done(figure)


def draw_chunks(num_tokens: int, chunk: int) -> Figure:
    """The causal triangle cut into the bands of its chunks: keys from the cache, and keys of the chunk itself."""
    firsts = list(range(0, num_tokens, chunk))
    heights = [min(chunk, num_tokens - first) for first in firsts]
    figure, panels = plt.subplots(
        len(firsts), 1, figsize=(6.6, 5.6), height_ratios=heights, sharex=True, facecolor="white", layout="constrained"
    )
    for n, (axes, first, rows) in enumerate(zip(np.atleast_1d(panels), firsts, heights, strict=True)):
        for query in range(first, first + rows):
            for key in range(first + rows):
                old = key < first
                colour = EMPTY if key > query else COLOURS[4] if old else COLOURS[1]
                hatch = "//" if old else ""
                box = Rectangle((key, query), 0.92, 0.92, facecolor=colour, edgecolor=LINE, hatch=hatch, alpha=0.85)
                axes.add_patch(box)
        axes.set(xlim=(-0.1, num_tokens), ylim=(first + rows, first - 0.1), ylabel=f"chunk {n}\nquery at")
        axes.set_yticks([q + 0.45 for q in range(first, first + rows)], [str(q) for q in range(first, first + rows)])
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    panels[-1].set_xticks([k + 0.45 for k in range(num_tokens)], [str(k) for k in range(num_tokens)])
    panels[-1].set_xlabel("key at position")
    handles = [
        Patch(facecolor=COLOURS[4], hatch="//", edgecolor=LINE, label="from the cache, written by earlier chunks"),
        Patch(facecolor=COLOURS[1], edgecolor=LINE, label="of this chunk"),
        Patch(facecolor=EMPTY, edgecolor=LINE, label="hidden"),
    ]
    panels[0].legend(handles=handles, loc="upper right", fontsize=8)
    return done(figure)


def draw_chunk_rates(rates: Mapping[int, float], bound: Mapping[int, float], flops_per_s: float) -> Figure:
    """FLOP per second reached and possible, by the number of tokens that go through the model together."""
    sizes = sorted(rates)
    figure, axes = plt.subplots(figsize=(7.4, 4.2), facecolor="white", layout="constrained")
    axes.loglog(sizes, [bound[n] / 1e9 for n in sizes], "s--", color=COLOURS[5], label="bound of the two roofs")
    axes.loglog(sizes, [rates[n] / 1e9 for n in sizes], "o-", color=COLOURS[1], label="measured, with your kernels")
    axes.axhline(flops_per_s / 1e9, color=LINE, linestyle=":", label="flat roof")
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel="tokens at a time", ylabel="rate (GFLOP/s)")
    axes.set_title("SmolLM2 reads 128 tokens: rate by chunk size", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return done(figure)
