"""The file in which SmolLM2 is shipped, opened: its tensors, their blocks, and one of them drawn."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from twophase_features.model_store.prepare import DEFAULT_MODEL_AS_STORED, resolve_model
from twophase_features.quantization.gguf_file import find_gguf, hugging_face_name, to_half_split
from twophase_labs.compression.changed_model import linears
from twophase_labs.kit.draw import done
from twophase_tools.colours import COLOURS, EMPTY, INK, LINE

BLOCK_BYTES = 20
# Query and key rows are in llama.cpp's order, the pairs of RoPE side by side.
HEADS = {"q_proj": 9, "k_proj": 3}


class Entry(NamedTuple):
    """A line of the file's table of tensors."""

    name: str
    kind: str
    shape: list[int]
    first_byte: int
    num_bytes: int


def path() -> Path:
    found = find_gguf(resolve_model(DEFAULT_MODEL_AS_STORED))
    assert found is not None  # the folder is made of it
    return found


@cache
def _reader() -> Any:
    from gguf import GGUFReader

    return GGUFReader(path())


def table() -> list[Entry]:
    """All tensors, in the order of the file; shapes as PyTorch writes them."""
    return [
        Entry(t.name, t.tensor_type.name, [int(n) for n in reversed(t.shape)], int(t.data_offset), int(t.n_bytes))
        for t in _reader().tensors
    ]


def stored_linears() -> Iterator[tuple[str, UInt8[Tensor, "n 20"], Float[Tensor, "O I"]]]:
    """Of each linear layer its name, its blocks, and the float32 weight that the labs use; rows in one order."""
    names = {hugging_face_name(tensor.name): tensor for tensor in _reader().tensors}
    for name, module in linears().items():
        weight = module.weight
        rows = torch.from_numpy(np.array(names[f"model.layers.{name}.weight"].data)).view(weight.shape[0], -1)
        layer = name.split(".")[-1]
        if layer in HEADS:
            rows = to_half_split(rows, HEADS[layer])
        yield name, rows.reshape(-1, BLOCK_BYTES), weight.detach()


def draw_block(block: UInt8[Tensor, "20"]) -> Figure:
    """The bytes of one block, and what each half of them is."""
    figure, axes = plt.subplots(figsize=(11, 2.9), facecolor="white")
    data = block.tolist()
    scale, minimum = block[:4].clone().view(torch.float16).tolist()
    for at, byte in enumerate(data):
        colour = COLOURS[1] if at < 2 else COLOURS[4] if at < 4 else EMPTY
        axes.add_patch(Rectangle((at, 0), 1, 0.8, facecolor=colour, edgecolor=INK))
        axes.text(at + 0.5, 0.4, f"{byte:02x}", ha="center", va="center", fontsize=11, color=INK, family="monospace")
        axes.text(at + 0.5, -0.12, str(at), ha="center", va="bottom", fontsize=7, color=LINE)
        for row, (code, weight) in enumerate(((byte & 15, at - 4), (byte >> 4, at + 12))):
            if at >= 4:
                axes.text(at + 0.5, 1.12 + 0.72 * row, f"{code}", ha="center", va="center", fontsize=10, color=INK)
                axes.text(
                    at + 0.5, 1.42 + 0.72 * row, f"w{weight}", ha="center", va="center", fontsize=8, color=COLOURS[0]
                )
    axes.text(1, 1.15, f"scale\n{scale:.5f}", ha="center", va="center", fontsize=9, color=INK)
    axes.text(3, 1.15, f"minimum\n{minimum:.5f}", ha="center", va="center", fontsize=9, color=INK)
    for row, name in enumerate(("low half", "high half")):
        axes.text(20.15, 1.12 + 0.72 * row, f"{name}: code", va="center", fontsize=9, color=INK)
        axes.text(20.15, 1.42 + 0.72 * row, "of weight", va="center", fontsize=8, color=COLOURS[0])
    axes.text(20.15, 0.4, "byte (hexadecimal)", va="center", fontsize=9, color=INK)
    axes.set(xlim=(-0.1, 23), ylim=(2.4, -0.4))
    axes.axis("off")
    axes.set_title("A Q4_1 block: 20 bytes, 32 weights", loc="left", fontsize=11)
    return done(figure)
