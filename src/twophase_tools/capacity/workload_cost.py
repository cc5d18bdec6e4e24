"""What a mean request costs: the loads of its steps, and their time by roofline."""

from dataclasses import dataclass
from typing import NamedTuple

from twophase_tools.capacity.config import PlanConfig, Workload
from twophase_tools.capacity.memory import even_shape
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.step_load import StepLoad, num_pairs


class Prefill(NamedTuple):
    """A prompt in chunks.

    Attributes:
        num_full: All but the last.
        full: Those, added up.
        last: The one that samples.
    """

    num_full: int
    full: StepLoad
    last: StepLoad

    @property
    def num_chunks(self) -> int:
        return self.num_full + 1

    @property
    def total(self) -> StepLoad:
        return StepLoad(*(a + b for a, b in zip(self.full, self.last, strict=True)))


@dataclass(frozen=True, slots=True)
class WorkloadCost:
    """Steps of mean requests, on one engine."""

    cost_model: RooflineCostModel
    workload: Workload

    @classmethod
    def of(cls, config: PlanConfig) -> "WorkloadCost":
        n = config.tensor_parallel_size
        shape = even_shape(config.shape, n)
        cost_model = RooflineCostModel(config.hardware, shape, n, config.assumptions, config.block_size)
        return cls(cost_model, config.workload)

    @property
    def num_decodes(self) -> int:
        """Decode steps of a request: its first token comes out of the prefill."""
        return self.workload.output_tokens - 1

    @property
    def mean_context(self) -> float:
        """Keys that a decode reads, its own included, on average over a request's life."""
        return self.workload.prompt_tokens + (self.num_decodes + 1) / 2 if self.num_decodes else 0.0

    def prefill(self, room: int) -> Prefill:
        """The prompt's chunks when each step has room for `room` tokens of it."""
        length = self.workload.prompt_tokens
        num_full = (length - 1) // room
        start = num_full * room
        full = StepLoad(
            num_tokens=start,
            num_samples=0,
            num_chunks=num_full,
            decode_context=0,
            prefill_pairs=num_pairs(0, start),
            prefill_context=room * num_full * (num_full + 1) // 2,  # a chunk reads all before it, and itself
        )
        last = length - start
        return Prefill(num_full, full, StepLoad(last, 1, 1, 0, num_pairs(start, last), length))

    def prefill_s(self, prefill: Prefill, num_decodes: int | float) -> float:
        """Seconds of all its steps, each with so many decodes beside it; the full chunks taken as their mean."""
        last_s = self.step_s(num_decodes, prefill.last)
        if prefill.num_full == 0:
            return last_s
        return prefill.num_full * self.step_s(num_decodes, prefill.full, 1 / prefill.num_full) + last_s

    def step_s(self, num_decodes: int | float, prefill: StepLoad | None = None, weight: int | float = 1) -> float:
        """Seconds of a step of so many decodes, and `weight` times a prefill load."""
        more = prefill or StepLoad(0, 0, 0, 0, 0, 0)
        load = StepLoad(
            num_tokens=num_decodes + weight * more.num_tokens,
            num_samples=num_decodes + weight * more.num_samples,
            num_chunks=num_decodes + weight * more.num_chunks,
            decode_context=num_decodes * self.mean_context,
            prefill_pairs=weight * more.prefill_pairs,
            prefill_context=weight * more.prefill_context,
        )
        return float(self.cost_model.cost(load).total_s)

    @property
    def ridge_batch(self) -> float:
        """Decodes in a step from which on its products take longer than reading the weights."""
        model = self.cost_model
        (flops, _), *_ = model.kernels(StepLoad(1, 1, 1, 0, 0, 0))
        weights = model.shape.weight_bytes  # of experts: all, which a large batch reads
        return float(model.roofline_s(0, weights) / model.roofline_s(flops, 0))
