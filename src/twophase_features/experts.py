"""Mixture of experts (arXiv:1701.06538): each token goes through K of a layer's E MLPs, those that a router chooses.

A token's K choices make K rows. The rows are sorted by expert, so that an expert multiplies all of its rows at once,
whichever tokens they belong to: the weights of an expert are read once in a step, or not at all. Then the rows go back
to their tokens and are added up in the order of the choices, best first, so that a token's result does not depend on
which other tokens share its experts.

The router is Mixtral's (arXiv:2401.04088, section 2.1) and Qwen3-MoE's (arXiv:2505.09388): a softmax over all experts,
the K largest, divided by their sum or not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase.model.config import ExpertsConfig, ModelConfig
from twophase.model.linear import GroupedLinear, Linear

# (rows [P, N] sorted by expert, how many rows each expert has [E]) -> each row through its expert [P, N].
ComputeExperts = Callable[[Tensor, Tensor], Tensor]
# `mix_experts` of a layer: (x [T, N], what computes the experts) -> [T, N].
MixExperts = Callable[[Tensor, ComputeExperts], Tensor]
# How processes that hold different experts compute a step together: (x, mix, the experts that are here) -> [T, N].
DispatchExperts = Callable[[Tensor, MixExperts, ComputeExperts], Tensor]


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


class Routing(NamedTuple):
    """Where tokens go.

    Attributes:
        experts: [T, K], best first.
        weights: [T, K], float32: what each expert's output is multiplied by.
    """

    experts: Int[Tensor, "T K"]
    weights: Float[Tensor, "T K"]


def route(logits: Float[Tensor, "T E"], config: ExpertsConfig) -> Routing:
    """The K experts of each token. The softmax is taken in float32, over all experts, before the choice."""
    weights, experts = logits.float().softmax(dim=-1).topk(config.num_experts_per_tok, dim=-1)
    if config.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return Routing(experts, weights)


def mix_experts(
    x: Float[Tensor, "T N"], compute: ComputeExperts, router: Linear, config: ExpertsConfig
) -> Float[Tensor, "T N"]:
    """The weighted sum of what each token's experts make of it; `compute` runs the experts, wherever they are."""
    routing = route(router(x), config)
    by_expert, counts = sort_by_expert(routing.experts.flatten(), config.num_experts)
    rows = torch.empty(by_expert.numel(), x.shape[1], dtype=x.dtype, device=x.device)
    rows[by_expert] = compute(x[by_expert // config.num_experts_per_tok], counts)
    choices = rows.view(*routing.experts.shape, x.shape[1])
    return (choices * routing.weights.unsqueeze(-1)).sum(dim=1).to(x.dtype)


def sort_by_expert(experts: Int[Tensor, "P"], num_experts: int) -> tuple[Int[Tensor, "P"], Int[Tensor, "E"]]:
    """The rows in the order of their experts, equals in the order they have, and how many rows each expert has."""
    counts = torch.zeros(num_experts, dtype=torch.int64, device=experts.device)
    counts.scatter_add_(0, experts, torch.ones_like(experts))  # unlike bincount, does not wait for a GPU
    return experts.argsort(stable=True), counts


# -- in a model folder


class ExpertNames(NamedTuple):
    """What a family's files call the parts of a layer's experts."""

    block: str
    gate: str
    up: str
    down: str


EXPERT_NAMES = {
    "MixtralForCausalLM": ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
    "Qwen3MoeForCausalLM": ExpertNames("mlp", "gate_proj", "up_proj", "down_proj"),
}


def is_sparse(config: ModelConfig, layer: int) -> bool:
    """Whether a layer has experts in place of an MLP."""
    return config.experts is not None and layer in config.experts.sparse_layers


def expert_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Name and shape [O, I] of the linear layers that stand in a sparse layer in place of the MLP's."""
    assert config.experts is not None
    names, n, i = EXPERT_NAMES[config.architecture], config.hidden_size, config.experts.intermediate_size
    shapes = {f"{names.block}.gate": (config.experts.num_experts, n)}
    for expert in range(config.experts.num_experts):
        prefix = f"{names.block}.experts.{expert}"
        shapes |= {f"{prefix}.{names.gate}": (i, n), f"{prefix}.{names.up}": (i, n), f"{prefix}.{names.down}": (n, i)}
    return shapes


# -- what lies on the experts


@final
class ExpertLoad:
    """Counts how many tokens each expert computes, in every layer of every step, as long as it is open.

        with ExpertLoad(llm.model) as load:
            llm.generate(...)
        load.tokens_per_expert   # int64 [S, L, E]: S steps, L layers that have experts
        load.num_active_experts  # int64 [S, L]: experts whose weights the step had to read

    Of a model whose experts are shared by several processes (`enable_expert_parallel`) E are those of this process, and
    the tokens those of all processes. Steps run without CUDA graphs meanwhile. The counts stay on the model's device
    until they are asked for.

    Raises:
        ValueError: The model has no experts, or is being watched already.
    """

    def __init__(self, model: Any) -> None:
        if model.config.experts is None:
            raise ValueError(f"{model.config.architecture} has no experts to count the tokens of.")
        self._model = model
        self._counts: list[Tensor] = []

    def __enter__(self) -> "ExpertLoad":
        if self._model.watch_experts is not None:
            raise ValueError("the experts of this model are being watched already; leave the other `with` block first.")
        self._model.watch_experts = self._note
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._model.watch_experts = None

    @property
    def tokens_per_expert(self) -> Int[Tensor, "S L E"]:
        num_layers = len(self._model.config.experts.sparse_layers)
        whole_steps = self._counts[: len(self._counts) // num_layers * num_layers]  # the last may have failed half-way
        if not whole_steps:
            return torch.zeros(0, num_layers, self._model.config.experts.num_experts, dtype=torch.int64)
        return torch.stack(whole_steps).unflatten(0, (-1, num_layers)).cpu()

    @property
    def num_active_experts(self) -> Int[Tensor, "S L"]:
        return (self.tokens_per_expert > 0).sum(dim=-1)

    def _note(self, layer: int, counts: Int[Tensor, "E"]) -> None:
        if layer == self._model.config.experts.sparse_layers[0]:
            num_layers = len(self._model.config.experts.sparse_layers)
            del self._counts[len(self._counts) // num_layers * num_layers :]  # of a step that failed half-way
        self._counts.append(counts)
