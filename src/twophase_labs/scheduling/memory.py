"""What an admission or a preemption looks at, as plain data, and the machines it happens on."""

from typing import NamedTuple

from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.model_shapes import MODELS


class Running(NamedTuple):
    """A decoding sequence in front of a step.

    Attributes:
        rank: Smaller goes first.
        num_needed: Blocks its next token needs: 0 or 1.
        num_own: Blocks that come free if it loses them; shared ones don't.
    """

    name: str
    rank: int
    num_needed: int
    num_own: int


class Held(NamedTuple):
    """A sequence as admission sees it.

    Attributes:
        num_tokens: Prompt and output so far.
        max_num_tokens: It ends when it has so many. The last of them is never written to a page.
    """

    num_tokens: int
    max_num_tokens: int


class Machine(NamedTuple):
    """What copying K and V, and computing them again, costs.

    Attributes:
        token_bytes: K and V of a token.
        host_bytes_per_s: Between the device and host memory, one way.
        token_s: Seconds to compute one token more in a step, without attention.
        pair_s: Seconds for each pair of a query and a key.
    """

    token_bytes: int
    host_bytes_per_s: float
    token_s: float
    pair_s: float


def gpu(model: str, hardware: str = "h100", num_gpus: int = 1, host_bytes_per_s: float = 25e9) -> Machine:
    """A model on GPUs, by the roofline's assumptions: large steps reach part of the peak arithmetic."""
    shape = MODELS[model]
    roofline = RooflineCostModel(HARDWARE[hardware], shape, num_gpus)
    flops_per_s = num_gpus * roofline.hardware.flops_per_s * roofline.assumptions.compute_efficiency
    return Machine(
        token_bytes=shape.kv_bytes_per_token,
        host_bytes_per_s=num_gpus * host_bytes_per_s,
        token_s=2 * shape.layer_params / flops_per_s,
        pair_s=4 * shape.num_heads * shape.head_dim * shape.num_layers / flops_per_s,
    )
