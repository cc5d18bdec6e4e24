"""What one decode step has to move and to compute, counted from a model's shape."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Two ceilings: bytes per second from memory, and FLOP per second."""

    name: str
    bandwidth: float
    flop_rate: float


@dataclass(frozen=True)
class DecodeWork:
    """One decode step. Weights are read once, whatever the batch; the rest is per sequence.

    Attributes:
        weight_bytes: All matrices that a token goes through.
        weight_flops: Of one sequence's token, in its products with them: two per weight.
        kv_bytes: K and V of one sequence's context.
        attention_flops: Of one sequence's token, over its context.
    """

    weight_bytes: int
    weight_flops: int
    kv_bytes: int
    attention_flops: int


@dataclass(frozen=True)
class Shape:
    """A Llama-like model."""

    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int

    @property
    def num_weights(self) -> int:
        """In matrices that a token is multiplied with: not the embedding, of which it takes a row."""
        attention = 2 * self.hidden * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden * self.intermediate) + self.vocab * self.hidden

    def decode_work(self, context: int, bytes_per_value: int) -> DecodeWork:
        per_token = 2 * self.num_layers * self.num_kv_heads * self.head_dim  # K and V values
        return DecodeWork(
            weight_bytes=self.num_weights * bytes_per_value,
            weight_flops=2 * self.num_weights,
            kv_bytes=per_token * context * bytes_per_value,
            attention_flops=4 * self.num_layers * self.num_heads * self.head_dim * context,
        )


SMOLLM2 = Shape(30, 576, 1536, 9, 3, 64, 49_152)
LLAMA_3_8B = Shape(32, 4096, 14_336, 32, 8, 128, 128_256)
# Dense 16-bit rates and memory bandwidths from the data sheets of the 40 GB A100 and the H100 SXM.
A100 = Machine("A100 40 GB", bandwidth=1.555e12, flop_rate=312e12)
H100 = Machine("H100", bandwidth=3.35e12, flop_rate=989e12)
