"""Which part of a model each rank holds: tensor parallelism as in Megatron-LM (arXiv:1909.08053, section 3).

Attention: a rank owns whole KV heads and all the query heads that read them, so its rows of q, k and v (the matrix is
cut by output, "column parallel") and its columns of o (cut by input, "row parallel"). MLP: rows of gate and up, columns
of down. Each of the two blocks then ends in partial sums, one per rank, and adding them up (an all-reduce) is all that
ranks say to each other inside of a layer. The last linear layer is cut by rows of the vocabulary; the embedding and the
norms are small or cheap, so every rank has them whole.

Shares may differ by one unit: SmolLM2-135M has 3 KV heads, so two ranks hold 2 and 1 of them, with 6 and 3 query heads.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twophase.core.errors import ConfigError
from twophase.core.sizes import MLP_UNIT
from twophase.model.config import ModelConfig


def share(total: int, rank: int, world_size: int) -> slice:
    """Rank `rank`'s contiguous part of [0, total): sizes differ by one at most, the first ranks have the larger ones.

    Example: 3 over 2 ranks is [0, 2) and [2, 3).
    """
    small, num_larger = divmod(total, world_size)
    start = rank * small + min(rank, num_larger)
    return slice(start, start + small + (rank < num_larger))


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank`'s part of a model that `world_size` ranks share.

    Attributes:
        whole: The model's configuration.

    Raises:
        ConfigError: More ranks than KV heads, or than units of the MLP.
    """

    whole: ModelConfig
    rank: int
    world_size: int

    def __post_init__(self) -> None:
        for name, count in (("num_key_value_heads", self.whole.num_kv_heads), ("intermediate_size", self._mlp_units)):
            if count < self.world_size:
                raise ConfigError(
                    f"tensor_parallel_size {self.world_size} leaves a rank without work: the model's {name} gives "
                    f"{count} parts to share out, and KV heads are not replicated. Use at most {count} processes."
                )

    @property
    def kv_heads(self) -> slice:
        return share(self.whole.num_kv_heads, self.rank, self.world_size)

    @property
    def heads(self) -> slice:
        """The query heads of these KV heads: head h reads KV head h // G."""
        return _times(self.kv_heads, self.whole.num_heads // self.whole.num_kv_heads)

    @property
    def mlp(self) -> slice:
        return _times(share(self._mlp_units, self.rank, self.world_size), self._mlp_unit)

    def vocabulary(self, rank: int) -> slice:
        """The rows of the last linear layer that rank `rank` has."""
        return share(self.whole.vocab_size, rank, self.world_size)

    @property
    def config(self) -> ModelConfig:
        """What this rank's forward pass and its cache see: a model of fewer heads and a narrower MLP."""
        return replace(
            self.whole,
            num_heads=_size(self.heads),
            num_kv_heads=_size(self.kv_heads),
            intermediate_size=_size(self.mlp),
        )

    def cut(self, name: str, tensor: Tensor) -> Tensor:
        """This rank's part of a linear layer's weight [O, I] or bias [O]; `name` is what the model folder calls it."""
        layer, kind = name.split(".")[-2:]
        q, kv = (_times(each, self.whole.head_dim) for each in (self.heads, self.kv_heads))
        rows = {"q_proj": q, "k_proj": kv, "v_proj": kv, "gate_proj": self.mlp, "up_proj": self.mlp}
        columns = {"o_proj": q, "down_proj": self.mlp}
        if layer in rows:
            return tensor[rows[layer]]
        if layer not in columns:  # lm_head, or the embedding in its place
            return tensor[self.vocabulary(self.rank)]
        if kind == "weight":
            return tensor[:, columns[layer]]
        return tensor if self.rank == 0 else torch.zeros_like(tensor)  # the sum over ranks must have it once

    @property
    def _mlp_unit(self) -> int:
        return MLP_UNIT if self.whole.intermediate_size % MLP_UNIT == 0 else 1

    @property
    def _mlp_units(self) -> int:
        return self.whole.intermediate_size // self._mlp_unit


def _times(part: slice, factor: int) -> slice:
    return slice(part.start * factor, part.stop * factor)


def _size(part: slice) -> int:
    return part.stop - part.start
