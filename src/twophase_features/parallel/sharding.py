"""Which part of a model each rank holds: tensor parallelism as in Megatron-LM (arXiv:1909.08053, section 3).

Attention: a rank owns whole KV heads and all the query heads that read them, so its rows of q, k and v (the matrix is
cut by output, "column parallel") and its columns of o (cut by input, "row parallel"). MLP: rows of gate and up, columns
of down. Each of the two blocks then ends in partial sums, one per rank, and adding them up (an all-reduce) is all that
ranks say to each other inside of a layer. The last linear layer is cut by rows of the vocabulary; the embedding and the
norms are small or cheap, so every rank has them whole.

Experts: each is an MLP, and cut like one, while the router is whole. Or, with expert parallelism, a rank owns whole
experts, as many as every other (see expert_parallel.py).

Shares may differ by one unit: SmolLM2-135M has 3 KV heads, so two ranks hold 2 and 1 of them, with 6 and 3 query heads.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from twophase.core.errors import ConfigError
from twophase.memory import MLP_UNIT
from twophase.model.config import ModelConfig

# Names that families give to the layers of an MLP, or of an expert.
GATES_AND_UPS = ("gate_proj", "up_proj", "w1", "w3")
DOWNS = ("down_proj", "w2")


def share(total: int, rank: int, world_size: int, unit: int = 1) -> slice:
    """Rank `rank`'s contiguous part of `total` units, each of `unit` rows: sizes differ by one unit at most, the first
    ranks have the larger ones.

    Example: 3 over 2 ranks is [0, 2) and [2, 3); in units of 4 rows [0, 8) and [8, 12).
    """
    small, num_larger = divmod(total, world_size)
    start = rank * small + min(rank, num_larger)
    return slice(start * unit, (start + small + (rank < num_larger)) * unit)


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank `rank`'s part of a model that `world_size` ranks share.

    Attributes:
        whole: The model's configuration.
        has_whole_experts: Expert parallelism: ranks share out experts, instead of cutting each.

    Raises:
        ConfigError: More ranks than KV heads, or than units of an MLP; experts that ranks cannot share evenly, or none.
    """

    whole: ModelConfig
    rank: int
    world_size: int
    has_whole_experts: bool = False

    def __post_init__(self) -> None:
        experts = self.whole.experts
        if self.has_whole_experts:
            _check_experts(self.whole, self.world_size)
        counts = {"num_key_value_heads": self.whole.num_kv_heads}
        if experts is None or len(experts.sparse_layers) < self.whole.num_layers:
            counts["intermediate_size"] = _units(self.whole.intermediate_size)[0]
        if experts is not None and not self.has_whole_experts:
            counts["intermediate_size of experts"] = _units(experts.intermediate_size)[0]
        for name, count in counts.items():
            if count < self.world_size:
                raise ConfigError(
                    f"tensor_parallel_size {self.world_size} leaves a rank without work: the model's {name} gives "
                    f"{count} parts to share out, and KV heads are not replicated. Use at most {count} processes."
                )

    @property
    def kv_heads(self) -> slice:
        return self._share(self.whole.num_kv_heads)

    @property
    def heads(self) -> slice:
        """The query heads of these KV heads: head h reads KV head h // G."""
        return self._share(self.whole.num_kv_heads, self.whole.num_heads // self.whole.num_kv_heads)

    @property
    def mlp(self) -> slice:
        return self._share(*_units(self.whole.intermediate_size))

    @property
    def inside_experts(self) -> slice:
        """The part of each expert's intermediate values that this rank computes."""
        size = 0 if self.whole.experts is None else self.whole.experts.intermediate_size
        return slice(0, size) if self.has_whole_experts else self._share(*_units(size))

    @property
    def experts(self) -> slice:
        """The experts of which this rank has something: its own, or all of them."""
        count = 0 if self.whole.experts is None else self.whole.experts.num_experts
        return self._share(count) if self.has_whole_experts else slice(0, count)

    def vocabulary(self, rank: int) -> slice:
        """The rows of the last linear layer that rank `rank` has."""
        return share(self.whole.vocab_size, rank, self.world_size)

    @property
    def config(self) -> ModelConfig:
        """The model that this rank's forward pass and cache see, with fewer heads and a narrower MLP, or experts."""
        experts = self.whole.experts
        return replace(
            self.whole,
            num_heads=_size(self.heads),
            num_kv_heads=_size(self.kv_heads),
            intermediate_size=_size(self.mlp),
            experts=None if experts is None else replace(experts, intermediate_size=_size(self.inside_experts)),
        )

    def cut(self, name: str, tensor: Any) -> Any:
        """This rank's part of a linear layer's weight [O, I] or bias [O]; `name` is what the model folder calls it.

        A weight is a tensor, or a `QuantizedWeight`, which is sliced like one. Raises ConfigError if the part would
        begin or end inside of a group of quantised weights.
        """
        layer, kind = name.split(".")[-2:]
        if layer == "gate":  # the router, whole
            return tensor
        size = self.whole.head_dim
        q, kv = (slice(each.start * size, each.stop * size) for each in (self.heads, self.kv_heads))
        mlp = self.inside_experts if ".experts." in name else self.mlp
        rows = {"q_proj": q, "k_proj": kv, "v_proj": kv, **dict.fromkeys(GATES_AND_UPS, mlp)}
        columns = {"o_proj": q, **dict.fromkeys(DOWNS, mlp)}
        if layer in rows:
            return tensor[rows[layer]]
        if layer not in columns:  # lm_head, or the embedding in its place
            return tensor[self.vocabulary(self.rank)]
        if kind == "weight":
            return tensor[:, columns[layer]]
        return tensor if self.rank == 0 else torch.zeros_like(tensor)  # the sum over ranks must have it once

    def _share(self, total: int, unit: int = 1) -> slice:
        return share(total, self.rank, self.world_size, unit)


def _units(intermediate_size: int) -> tuple[int, int]:
    """How many units an MLP has that ranks do not split, and how many rows are in one."""
    unit = 1 if intermediate_size % MLP_UNIT else MLP_UNIT
    return intermediate_size // unit, unit


def _check_experts(config: ModelConfig, world_size: int) -> None:
    if config.experts is None:
        raise ConfigError(
            f"enable_expert_parallel shares out the experts of a model, and {config.architecture} has no experts; "
            f"leave it off."
        )
    count = config.experts.num_experts
    if count % world_size:
        fitting = [size for size in range(1, count + 1) if count % size == 0]
        raise ConfigError(
            f"enable_expert_parallel gives every rank as many experts as the others, and {count} experts cannot be "
            f"shared evenly by tensor_parallel_size {world_size}; use one of {', '.join(map(str, fitting))} processes, "
            f"or leave enable_expert_parallel off."
        )


def _size(part: slice) -> int:
    return part.stop - part.start
