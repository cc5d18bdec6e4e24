"""How narrow the way through a grammar is."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from twophase_labs.kit.draw import one_axes
from twophase_tools.colours import COLOURS, INK, LINE

BLUE, ORANGE = COLOURS[0], COLOURS[5]


def draw_choices(written: Sequence[str], num_allowed: Sequence[int], num_tokens: int) -> Figure:
    """How many tokens were allowed when each token of an answer was chosen; where it was one, nothing was chosen."""
    figure, axes = one_axes(
        10, 3.8, "Where the grammar decides (hatched: one token is possible) and where the model does"
    )
    forced = [count == 1 for count in num_allowed]
    axes.bar(
        range(len(written)),
        [count - 0.5 for count in num_allowed],
        bottom=0.5,
        color=[ORANGE if one else BLUE for one in forced],
        hatch=["//" if one else "" for one in forced],
        edgecolor="white",
    )
    axes.axhline(num_tokens, color=LINE, linestyle=":")
    axes.text(len(written) - 0.5, num_tokens * 0.8, "the whole vocabulary", ha="right", va="top", color=INK)
    axes.set(yscale="log", ylim=(0.5, 2 * num_tokens), xlim=(-0.7, len(written) - 0.3), ylabel="tokens allowed")
    labels = [text.replace(" ", "␣") for text in written]
    axes.set_xticks(range(len(written)), labels, rotation=60, ha="right", fontsize=9)
    axes.set_xlabel("token written (␣ is a space)")
    figure.tight_layout()
    return figure
