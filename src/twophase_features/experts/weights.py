"""A layer's experts: their tensors' names in a model folder, and their layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from twophase.memory import ROW_ALIGNMENT_BYTES
from twophase.model.config import ModelConfig
from twophase.model.linear import Linear, TorchLinear, make_linear
from twophase.model.weights import DenseMLP, LinearShape, WeightLoader


class ExpertNames(NamedTuple):
    """A family's names for the parts of a layer's experts."""

    block: str
    gate: str
    up: str
    down: str


EXPERT_NAMES = {
    "MixtralForCausalLM": ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
    "Qwen3MoeForCausalLM": ExpertNames("mlp", "gate_proj", "up_proj", "down_proj"),
}


@dataclass(frozen=True, slots=True)
class GroupedLinear:
    """Several linear layers of one shape without biases, each for rows of its own.

    Attributes:
        layers: One each; views of `stacked` where there is that.
        stacked: [E, O, I], where one launch multiplies them all, and the host need not know which rows are whose.
    """

    layers: tuple[Linear, ...]
    stacked: Float[Tensor, "E O I"] | None

    def __call__(self, x: Float[Tensor, "P I"], counts: Int[Tensor, "E"]) -> Float[Tensor, "P O"]:
        """The first `counts[0]` rows through the first layer, and so on. A layer without rows costs nothing."""
        if self.stacked is not None:
            return F.grouped_mm(x, self.stacked.transpose(1, 2), offs=counts.cumsum(0, dtype=torch.int32))
        parts = x.split(counts.tolist())
        products = [layer(part) for layer, part in zip(self.layers, parts, strict=True) if len(part)]
        return torch.cat(products or [self.layers[0](x)])


@dataclass(frozen=True, slots=True)
class SparseMLP:
    """The experts of one layer. N hidden, E experts in all, of which this process has some (all, if it is alone).

    Attributes:
        router: N -> E: a logit for each expert, of this process or not.
        gate_up: N -> 2 I of each expert: gate, then up.
        down: I -> N of each expert.
    """

    router: Linear
    gate_up: GroupedLinear
    down: GroupedLinear

    @property
    def can_be_captured(self) -> bool:
        """Whether the product needs no row counts on the host."""
        return self.gate_up.stacked is not None and self.down.stacked is not None

    @staticmethod
    def shapes(config: ModelConfig, layer: int) -> Mapping[str, LinearShape]:
        """The linear layers that a folder holds for a layer's MLP, experts or not."""
        if layer not in config.experts.sparse_layers:
            return DenseMLP.shapes(config, layer)
        names, n, i = EXPERT_NAMES[config.architecture], config.hidden_size, config.experts.intermediate_size
        shapes = {f"{names.block}.gate": LinearShape(config.experts.num_experts, n)}
        for expert in range(config.experts.num_experts):
            prefix = f"{names.block}.experts.{expert}"
            shapes |= {f"{prefix}.{name}": LinearShape(i, n) for name in (names.gate, names.up)}
            shapes[f"{prefix}.{names.down}"] = LinearShape(n, i)
        return shapes

    @staticmethod
    def load(loader: WeightLoader, config: ModelConfig, layer: int, experts: slice) -> "SparseMLP | DenseMLP":
        """A layer's MLP, or this process's part of its experts."""
        if layer not in config.experts.sparse_layers:
            return DenseMLP.load(loader, config, layer, experts)
        names = EXPERT_NAMES[config.architecture]
        block = f"model.layers.{layer}.{names.block}"
        kept = [f"{block}.experts.{expert}." for expert in range(config.experts.num_experts)[experts]]
        return SparseMLP(
            # Never rounded: routing is sensitive to rounding.
            router=make_linear(loader.tensor(f"{block}.gate.weight")),
            gate_up=_load_grouped(loader, [(expert + names.gate, expert + names.up) for expert in kept]),
            down=_load_grouped(loader, [(expert + names.down,) for expert in kept]),
        )


def _load_grouped(loader: WeightLoader, experts: Sequence[tuple[str, ...]]) -> GroupedLinear:
    """A linear layer for each expert, each several linear layers of the same input stacked; all of one shape."""
    return make_grouped_linear(len(experts), lambda number: loader.linear(*experts[number]))


def make_grouped_linear(num_layers: int, make: Callable[[int], Linear]) -> GroupedLinear:
    """The linear layers `make(0)`, `make(1)` ..., all of one shape. Each is made, and its weight moved into the stacked
    weights, before the next one is made: there is a second copy of one layer at most.

    On a CPU each is packed like any other, and multiplied by itself.
    """
    first = make(0)
    if not isinstance(first, TorchLinear) or not _can_group(first.weight):
        return GroupedLinear((first, *map(make, range(1, num_layers))), None)
    stacked = first.weight.new_empty(num_layers, *first.weight.shape)
    for number in range(num_layers):
        layer = make(number)
        if not isinstance(layer, TorchLinear):  # stored in few bits, unlike the first
            return GroupedLinear(tuple(map(make, range(num_layers))), None)
        stacked[number] = layer.weight
    return GroupedLinear(tuple(TorchLinear(weight, None, is_packed=False) for weight in stacked), stacked)


def _can_group(weight: Float[Tensor, "O I"]) -> bool:
    """Whether this GPU multiplies groups of rows in one launch: F.grouped_mm takes bfloat16 on compute capability 8.0
    and later (its documentation, torch 2.13), in rows that start at multiples of 16 bytes. Not run on a GPU yet."""
    if weight.device.type != "cuda" or weight.dtype != torch.bfloat16 or not hasattr(F, "grouped_mm"):
        return False
    is_aligned = all(size * weight.dtype.itemsize % ROW_ALIGNMENT_BYTES == 0 for size in weight.shape)
    return is_aligned and torch.cuda.get_device_capability(weight.device) >= (8, 0)
