"""The bytes of a decode step, by what its weights and its K and V are stored in, and how fast the engine gets."""

from collections.abc import Mapping
from functools import cache

from matplotlib.figure import Figure

from twophase import LLM
from twophase_features.model_store.prepare import DEFAULT_MODEL
from twophase_labs.decode import step_time
from twophase_labs.decode.decode_work import SMOLLM2, Shape
from twophase_labs.kit.draw import done, one_axes
from twophase_tools.colours import COLOURS, INK

BITS_IN_4 = 5.0  # of a weight in the engine's int4: groups of 32 share a scale and a minimum of 16 bits each


def weight_bytes(shape: Shape, layer_bits: int | float, head_bits: int | float) -> tuple[float, float]:
    """What a step reads of the decoder layers' matrices, and of the output head."""
    in_head = shape.vocab * shape.hidden
    return (shape.num_weights - in_head) * layer_bits / 8, in_head * head_bits / 8


def kv_bytes(shape: Shape, bits: int | float, context: int, num_sequences: int) -> float:
    """What a step reads of K and V."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * context * num_sequences * bits / 8


@cache
def open_engine(dtype: str) -> LLM:
    """SmolLM2 in float32; or in bfloat16 with the engine's own 4-bit weights, whose output head has 16 bits.

    On the CPU, also where there is a GPU. The whole lab runs on these two.
    """
    return LLM(
        DEFAULT_MODEL, device="cpu", dtype=dtype, quantization="int4" if dtype == "bfloat16" else None,
        attention_backend="torch", num_kv_blocks=128, max_num_seqs=8,
    )  # fmt: skip


@cache
def step_seconds() -> Mapping[str, float]:
    """Of one sequence's decode step, by the weights' format."""
    dtypes = {"float32": "float32", "4 bits": "bfloat16"}
    return {name: step_time.decode_step_s(open_engine(dtype)) for name, dtype in dtypes.items()}


@cache
def fixed_seconds() -> float:
    """Of the same step with hardly any weights: its Python code and small operations."""
    return step_time.decode_step_s(step_time.thin_engine())


def faster_in_4_bits() -> float:
    """Tokens per second with 4-bit weights over those in float32."""
    seconds = step_seconds()
    return seconds["float32"] / seconds["4 bits"]


def bytes_read() -> Mapping[str, float]:
    """By a step of SmolLM2 of one sequence and no context, in the formats of `step_seconds`."""
    bits = {"float32": (32, 32), "4 bits": (BITS_IN_4, 16)}
    return {name: sum(weight_bytes(SMOLLM2, *each)) for name, each in bits.items()}


def draw_shares(shape: Shape, context: int, batches: tuple[int, ...]) -> Figure:
    """What a step reads, by part, for each format and batch."""
    formats = {
        "all in 16 bits": (16, 16),
        "weights in 4.5 bits": (4.5, 16),
        "weights in 4.5, K and V in 8 bits": (4.5, 8),
    }
    figure, axes = one_axes(9, 0.8 + 1.15 * len(batches))
    rows: list[tuple[float, str]] = []
    at = 0.0
    for batch in batches:
        for name, (weights, kv) in formats.items():
            layers, head = (each / 1e9 for each in weight_bytes(shape, weights, 16))
            parts = {"layers": layers, "output head": head, "K and V": kv_bytes(shape, kv, context, batch) / 1e9}
            left = 0.0
            for (part, size), colour, hatch in zip(
                parts.items(), (COLOURS[0], COLOURS[4], COLOURS[1]), ("", "//", ".."), strict=True
            ):
                label = part if not rows else None
                axes.barh(at, size, 0.72, left=left, color=colour, hatch=hatch, edgecolor="white", label=label)
                left += size
            axes.text(left + 0.2, at, f"{left:.1f} GB", va="center", fontsize=9, color=INK)
            rows.append((at, f"{batch} sequence{'s' * (batch > 1)}: {name}"))
            at += 1
        at += 0.5
    axes.set_yticks(*zip(*rows, strict=True), fontsize=9)
    axes.set(xlabel="read in a step (GB)", xlim=(0, axes.get_xlim()[1] * 1.08))
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.42), fontsize=9)
    axes.set_title(
        f"What a decode step of Llama-3-8B reads ({context:,} tokens of context each)", loc="left", fontsize=11
    )
    return done(figure)
