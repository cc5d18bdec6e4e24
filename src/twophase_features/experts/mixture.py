"""The forward pass of a layer with experts: a router chooses K of E MLPs for each token.

A token's K choices make K rows. The rows are sorted by expert, so that an expert multiplies all of its rows at once,
for all tokens: the weights of an expert are read at most once in a step. Then the rows go back to their tokens and are
added up in the order of the choices, best first, so that a token's result does not depend on which other tokens share
its experts.

The router is Mixtral's (arXiv:2401.04088, section 2.1) and Qwen3-MoE's (arXiv:2505.09388): a softmax over all experts,
the K largest, divided by their sum or not.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase.model.linear import Linear
from twophase_features.experts.config import ExpertsConfig
from twophase_features.experts.weights import SparseMLP

# (rows [P, N] sorted by expert, how many rows each expert has [E]) -> each row through its expert [P, N].
ComputeExperts = Callable[[Tensor, Tensor], Tensor]
# `mix_experts` of a layer: (x [T, N], a function that computes the experts) -> [T, N].
MixExperts = Callable[[Tensor, ComputeExperts], Tensor]
# How processes that hold different experts compute a step together: (x, mix, the experts that are here) -> [T, N].
DispatchExperts = Callable[[Tensor, MixExperts, ComputeExperts], Tensor]
# Called for each layer with experts: (its number, the rows that each expert of this process computes, int64 [E]).
WatchExperts = Callable[[int, Tensor], None]


class MixtureOfExperts:
    """Computes the layers of a `LlamaModel` that have experts.

    Args:
        gated: Maps gate and up, side by side, to the gate's activation times up.
        add: Sums the partial outputs of the processes that share each expert.
        dispatch: Sends a step's rows to the processes that hold their experts; None: `mix_experts`, then `add`.
    """

    def __init__(
        self,
        config: ExpertsConfig,
        gated: Callable[[Tensor], Tensor],
        add: Callable[[Tensor], Tensor],
        dispatch: DispatchExperts | None,
    ) -> None:
        self._config = config
        self._gated = gated
        self._dispatch = dispatch or (lambda x, mix, compute: add(mix(x, compute)))

    def __call__(
        self, x: Float[Tensor, "T N"], mlp: SparseMLP, number: int, watch: WatchExperts | None
    ) -> Float[Tensor, "T N"]:
        """Layer `number`'s experts, each token's weighted and added up."""

        def compute(rows: Float[Tensor, "P N"], counts: Int[Tensor, "E"]) -> Float[Tensor, "P N"]:
            if watch is not None:
                watch(number, counts)
            return mlp.down(self._gated(mlp.gate_up(rows, counts)), counts)

        return self._dispatch(x, partial(mix_experts, router=mlp.router, config=self._config), compute)


def route(logits: Float[Tensor, "T E"], config: ExpertsConfig) -> tuple[Int[Tensor, "T K"], Float[Tensor, "T K"]]:
    """The K experts of each token, best first, and the float32 factors on their outputs. The softmax is taken in
    float32, over all experts, before the choice."""
    weights, experts = logits.float().softmax(dim=-1).topk(config.num_experts_per_tok, dim=-1)
    if config.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return experts, weights


def mix_experts(
    x: Float[Tensor, "T N"], compute: ComputeExperts, router: Linear, config: ExpertsConfig
) -> Float[Tensor, "T N"]:
    """The weighted sum of the outputs of each token's experts; `compute` runs the experts, here or in other
    processes."""
    experts, weights = route(router(x), config)
    by_expert, counts = sort_by_expert(experts.flatten(), config.num_experts)
    rows = torch.empty(by_expert.numel(), x.shape[1], dtype=x.dtype, device=x.device)
    rows[by_expert] = compute(x[by_expert // config.num_experts_per_tok], counts)
    choices = rows.view(*experts.shape, x.shape[1])
    return (choices * weights.unsqueeze(-1)).sum(dim=1).to(x.dtype)


def sort_by_expert(experts: Int[Tensor, "P"], num_experts: int) -> tuple[Int[Tensor, "P"], Int[Tensor, "E"]]:
    """The rows sorted by expert (stably), and the number of rows of each expert."""
    counts = torch.zeros(num_experts, dtype=torch.int64, device=experts.device)
    counts.scatter_add_(0, experts, torch.ones_like(experts))  # unlike bincount, does not wait for a GPU
    return experts.argsort(stable=True), counts
