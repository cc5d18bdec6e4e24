"""A model as a cost estimate sees it: sizes only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a Llama-like model.

    Attributes:
        hidden: Elements per token between layers; mlp: the same inside the MLP.
    """

    num_layers: int
    hidden: int
    mlp: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """The weight matrices of one layer, [inputs, outputs]."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return {
            "q": (self.hidden, q),
            "k": (self.hidden, kv),
            "v": (self.hidden, kv),
            "o": (q, self.hidden),
            "gate": (self.hidden, self.mlp),
            "up": (self.hidden, self.mlp),
            "down": (self.mlp, self.hidden),
        }


SMOLLM2 = ModelShape(30, hidden=576, mlp=1536, num_heads=9, num_kv_heads=3, head_dim=64, vocab=49152)
LLAMA_3_8B = ModelShape(32, hidden=4096, mlp=14336, num_heads=32, num_kv_heads=8, head_dim=128, vocab=128_256)
