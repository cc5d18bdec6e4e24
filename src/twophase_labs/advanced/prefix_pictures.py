"""Pictures of shared prefixes and of what they save."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrow, Rectangle

from twophase_labs.kit.draw import one_axes
from twophase_tools.colours import COLOURS, EMPTY, INK, LINE

BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW = COLOURS
OF_SEVERAL, OF_ONE = (VERMILION, YELLOW), (GREEN, PINK, BLUE)  # not the colours of the two phases
WIDTH, HEIGHT = 0.86, 0.62

Block = tuple[str, bytes | None]  # what stands in it; its hash, None where it is not full


def draw_chains(requests: Mapping[str, Sequence[Block]]) -> Figure:
    """Each request's blocks in a row.

    A block that several requests have has a colour for its hash and a thick frame; all others of a request have one
    colour, the request's.
    """
    hashes = [one for blocks in requests.values() for _, one in blocks if one is not None]
    shared = [one for one in dict.fromkeys(hashes) if hashes.count(one) > 1]
    colour_of: dict[bytes | None, str] = {one: OF_SEVERAL[at % len(OF_SEVERAL)] for at, one in enumerate(shared)}
    figure, axes = plt.subplots(figsize=(10.5, 0.5 + 0.85 * len(requests)), facecolor="white")
    for row, (name, blocks) in enumerate(requests.items()):
        axes.text(-0.12, row + HEIGHT / 2, name, ha="right", va="center", color=INK)
        for column, (text, one) in enumerate(blocks):
            own = EMPTY if one is None else OF_ONE[row % len(OF_ONE)]
            _draw_block(axes, column, row, text, one, colour_of.get(one, own), one in colour_of)
    widest = max(len(blocks) for blocks in requests.values())
    axes.set(xlim=(-1.1, widest), ylim=(len(requests), -0.25), xticks=[], yticks=[])
    axes.set_title("Each hash is made of the one to its left and the block's own tokens", loc="left")
    axes.set_xlabel("thick frame: several requests have this block", color=INK, fontsize=9)
    axes.spines[:].set_visible(False)
    figure.tight_layout()
    return figure


def _draw_block(axes: Axes, column: int, row: int, text: str, one: bytes | None, colour: str, is_shared: bool) -> None:
    edge, width = (INK, 3.5) if is_shared else (LINE, 0.8)
    face = to_rgba(colour, 0.55)  # the edge is not to fade with it
    axes.add_patch(Rectangle((column, row), WIDTH, HEIGHT, facecolor=face, edgecolor=edge, linewidth=width))
    axes.text(column + WIDTH / 2, row + 0.2, text, ha="center", va="center", fontsize=8, color=INK)
    name = "not full: no hash" if one is None else one.hex()[:4]
    axes.text(column + WIDTH / 2, row + 0.46, name, ha="center", va="center", fontsize=8.5, color=INK, weight="bold")
    if column and one is not None:
        axes.add_patch(
            FancyArrow(column - 0.12, row + 0.46, 0.07, 0, width=0.012, head_width=0.09, head_length=0.04, color=INK)
        )


def draw_first_tokens(computed: Sequence[int], seconds: Sequence[float], num_tokens: int) -> Figure:
    """Time to first token of prompts of one length, by how many of their tokens were still to be computed."""
    figure, axes = one_axes(7, 3.4, "What is found need not be computed")
    axes.plot(computed, [1000 * one for one in seconds], "o-", color=BLUE)
    fewest, floor_s = min(zip(computed, seconds, strict=True))
    floor_ms = 1000 * floor_s
    axes.axhline(floor_ms, color=LINE, linewidth=0.8, linestyle="--")
    axes.annotate(f"{fewest} tokens: {floor_ms:.0f} ms", (num_tokens, floor_ms), (0, 4),
                  textcoords="offset points", ha="right", fontsize=9, color=INK)  # fmt: skip
    axes.set(xlabel=f"tokens computed of {num_tokens}", ylabel="time to first token (ms)", ylim=(0, None))
    figure.tight_layout()
    return figure


def draw_probes(runs: Mapping[str, Sequence[float]], parts: Sequence[Sequence[str]], secret: Sequence[int]) -> Figure:
    """A panel per run; for each option of each part, in the order of asking, how long its first token took."""
    labels = [f"{name}  *" if at == pick else name for part, pick in zip(parts, secret, strict=True)
              for at, name in enumerate(part)]  # fmt: skip
    starts = [sum(len(part) for part in parts[:at]) for at in range(len(parts))]
    figure, panels = plt.subplots(
        1, len(runs), figsize=(10.5, 4.2), facecolor="white", sharey=True, sharex=True, squeeze=False
    )
    for axes, (title, times_s) in zip(panels[0], runs.items(), strict=True):
        for start, part in zip(starts, parts, strict=True):
            times_ms = [1000 * one for one in times_s[start : start + len(part)]]
            shortest = times_ms.index(min(times_ms))
            colours = [ORANGE if at == shortest else BLUE for at in range(len(part))]
            axes.barh(range(start, start + len(part)), times_ms, 0.72, color=colours, edgecolor=INK, linewidth=0.5)
            if start:
                axes.axhline(start - 0.5, color=LINE, linewidth=0.8)
        axes.set(xlabel="time to first token (ms)", yticks=range(len(labels)), ylim=(len(labels) - 0.4, -0.6))
        axes.set_yticklabels(labels)
        axes.set_title(title, loc="left")
        axes.spines[["right", "top"]].set_visible(False)
    figure.supxlabel("orange: the shortest of its part; *: what the company really wrote", fontsize=10, color=INK)
    figure.tight_layout()
    return figure
