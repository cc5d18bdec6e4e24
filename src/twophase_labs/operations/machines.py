"""What a GPU and a model cost, in a few numbers. It travels to a learner's process, and so imports nothing."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A GPU and a model, in the numbers that a step's time depends on.

    Attributes:
        flops_per_s, bytes_per_s: That it reaches, not the data sheet's peaks.
        weight_bytes: Read once by every step.
        flops_per_token: Of the products with the weights.
        flops_per_key: Of a query and a key in attention, in all layers.
        kv_bytes_per_token: K and V of a token, in all layers.
    """

    flops_per_s: float
    bytes_per_s: float
    weight_bytes: int
    flops_per_token: int
    flops_per_key: int
    kv_bytes_per_token: int
