"""What a long context takes, by roofline."""

from typing import NamedTuple

from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.step_load import StepLoad


class Context(NamedTuple):
    """One sequence of so many tokens.

    Attributes:
        kv_bytes: Of its K and V.
        num_fit: How many such sequences fit beside the weights.
        prefill_s: To compute all of it in one step.
        step_s: Of a decode step of this sequence alone.
    """

    num_tokens: int
    kv_bytes: int
    num_fit: int
    prefill_s: float
    step_s: float


def context(num_tokens: int, model: str = "llama-3-8b", hardware: str = "h100") -> Context:
    """A sequence of `num_tokens` on one GPU."""
    cost = RooflineCostModel(HARDWARE[hardware], MODELS[model])
    pairs = num_tokens * (num_tokens + 1) // 2
    prefill = StepLoad(num_tokens, 1, 1, decode_context=0, prefill_pairs=pairs, prefill_context=num_tokens)
    step = StepLoad(1, 1, 1, decode_context=num_tokens, prefill_pairs=0, prefill_context=0)
    num_fit = cost.num_blocks() * cost.block_size // num_tokens
    kv_bytes = num_tokens * MODELS[model].kv_bytes_per_token
    return Context(num_tokens, kv_bytes, num_fit, float(cost.run_s(prefill)), float(cost.run_s(step)))
