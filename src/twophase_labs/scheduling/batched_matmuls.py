"""The matrix products of one SmolLM2 layer for the tokens of one step: flat, padded, and sequence by sequence."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from twophase.core.colours import COLOURS, INK
from twophase_labs.kit.timing import seconds

# Tokens of each sequence in the step: one chunk of a prompt, and 23 decodes.
LENGTHS = (200, *[1] * 23)
HIDDEN, KV, MLP = 576, 192, 1536
REPEATS = 3
BLUE, ORANGE, GREEN, *_ = COLOURS


class Layer:
    """Random weights of the right sizes; what counts is the time."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def weights(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator) / columns**0.5

        self.qkv, self.out = weights(HIDDEN + 2 * KV, HIDDEN), weights(HIDDEN, HIDDEN)
        self.up, self.down = weights(2 * MLP, HIDDEN), weights(HIDDEN, MLP)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """All products but attention, for rows of any sequences; [..., 576] to the same shape."""
        y = (x @ self.qkv.T)[..., :HIDDEN] @ self.out.T
        gate, up = (y @ self.up.T).split(MLP, dim=-1)
        return (torch.nn.functional.silu(gate) * up) @ self.down.T


def ways() -> tuple[dict[str, Callable[[], torch.Tensor]], list[torch.Tensor]]:
    """How to compute a step's rows, and the rows of each sequence."""
    layer = Layer()
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randn(length, HIDDEN, generator=generator) for length in LENGTHS]
    flat = torch.cat(rows)
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    is_real = torch.nn.utils.rnn.pad_sequence([torch.ones(length) for length in LENGTHS], batch_first=True).bool()
    found: dict[str, Callable[[], torch.Tensor]] = {
        "flat: one product": lambda: layer(flat),
        "one sequence after another": lambda: torch.cat([layer(one) for one in rows]),
        "padded to the longest": lambda: layer(padded)[is_real],
    }
    return found, rows


def times_s() -> dict[str, float]:
    return {name: seconds(call, REPEATS) for name, call in ways()[0].items()}


def largest_difference() -> float:
    """Between the flat products and the others, relative to the size of the values."""
    results = [call() for call in ways()[0].values()]
    return max(float((other - results[0]).abs().max() / results[0].abs().max()) for other in results[1:])


def draw_times(measured_s: dict[str, float]) -> Figure:
    figure, axes = plt.subplots(figsize=(8, 2.4), facecolor="white")
    names = list(measured_s)[::-1]
    values = [1e3 * measured_s[name] for name in names]
    axes.barh(names, values, color=[ORANGE, GREEN, BLUE], edgecolor=INK, linewidth=0.6)
    for row, value in enumerate(values):
        axes.text(value, row, f" {value:.1f}", va="center", color=INK)
    axes.set(xlabel="time for the products of one layer (ms)", xlim=(0, 1.12 * max(values)))
    axes.set_title(f"{sum(LENGTHS)} tokens of {len(LENGTHS)} sequences", loc="left")
    axes.spines[["right", "top"]].set_visible(False)
    figure.tight_layout()
    return figure
