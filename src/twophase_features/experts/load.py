"""How many tokens each expert computes."""

from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor


@final
class ExpertLoad:
    """Counts how many tokens each expert computes, in every layer of every step, as long as it is open.

        with ExpertLoad(llm.model) as load:
            llm.generate(...)
        load.tokens_per_expert   # int64 [S, L, E]: S steps, L layers that have experts
        load.num_active_experts  # int64 [S, L]: experts whose weights the step had to read

    With `enable_expert_parallel`, E counts this process's experts, and the tokens come from all processes. Counting
    turns CUDA graphs off. The counts stay on the model's device until they are asked for. Raises ValueError if the
    model has no experts, or is being watched already.
    """

    def __init__(self, model: Any) -> None:
        if model.config.experts is None:
            raise ValueError(f"{model.config.architecture} has no experts to count the tokens of.")
        self._model = model
        self._counts: list[Tensor] = []

    def __enter__(self) -> "ExpertLoad":
        if self._model.watch_experts is not None:
            raise ValueError("another `ExpertLoad` is already open for this model; leave the other `with` block first.")
        self._model.watch_experts = self._note
        return self

    def __exit__(self, *error: object) -> None:
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
