"""How long a step takes, from what it computes."""

import abc
from dataclasses import MISSING, dataclass, field
from typing import NamedTuple, final

from twophase.core.errors import ConfigError
from twophase.core.rules import number, option
from twophase_tools.checked import Checked
from twophase_tools.simulate.hardware import Hardware
from twophase_tools.simulate.model_shapes import ModelShape
from twophase_tools.simulate.step_load import StepLoad


class StepCost(NamedTuple):
    """Seconds of a step's three parts, as `StepTrace` has them."""

    schedule_s: float | int
    run_s: float | int
    update_s: float | int

    @property
    def total_s(self) -> float | int:
        return self.schedule_s + self.run_s + self.update_s


class CostModel(abc.ABC):
    """The time of a step. Implementations are final, and never let a step get shorter when its context gets longer."""

    def overhead_s(self, num_chunks: int | float) -> tuple[float | int, float | int]:
        """Seconds of `schedule` and of `update` for a batch of so many chunks."""
        return 0.0, 0.0

    @abc.abstractmethod
    def run_s(self, load: StepLoad) -> float | int:
        """Seconds to run the step."""

    def cost(self, load: StepLoad) -> StepCost:
        schedule_s, update_s = self.overhead_s(load.num_chunks)
        return StepCost(schedule_s, float(self.run_s(load)), update_s)


SECONDS = number("a finite number of seconds >= 0", lambda x: x >= 0)


@final
@dataclass(frozen=True)
class LinearCostModel(Checked, CostModel):
    """A step's time as a sum of what it does times what each costs:

        run = per_step + per_token * tokens + per_sample * samples
              + per_context * decode context + per_pair * prefill pairs

    `per_step` is what any step costs, the reading of the weights above all; `per_token` the layers' products,
    `per_sample` the output projection and the sampling, `per_context` a decode's reading of the cache, and `per_pair`
    the attention of prefills, the quadratic part. Seconds each. The host takes no time, nor do swaps.
    """

    per_step_s: float | int = option(MISSING, SECONDS)
    per_token_s: float | int = option(0.0, SECONDS)
    per_sample_s: float | int = option(0.0, SECONDS)
    per_context_s: float | int = option(0.0, SECONDS)
    per_pair_s: float | int = option(0.0, SECONDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.per_step_s + self.per_token_s <= 0:
            raise ConfigError("a step must take time: per_step_s or per_token_s must be above 0, or no clock advances.")

    def run_s(self, load: StepLoad) -> float | int:
        fixed = self.per_step_s + self.per_token_s * load.num_tokens + self.per_sample_s * load.num_samples
        return fixed + self.per_pair_s * load.prefill_pairs + self.per_context_s * load.decode_context


# A share of next to nothing would leave the range of floats.
SHARE = number("a share of a peak, in [1e-12, 1]", lambda x: 1e-12 <= x <= 1)
AT_LEAST_0 = number("a number in [0, 1e21]", lambda x: 0 <= x <= 1e21)


@final
@dataclass(frozen=True)
class Assumptions(Checked):
    """What a roofline cannot know. None of these was measured; they are round numbers of the size that well-tuned
    engines are reported to reach, and they are printed with every result.

    Attributes:
        compute_efficiency: Share of the peak FLOP/s that a large step reaches.
        bandwidth_efficiency: Share of the peak bytes/s, for HBM and for the links between GPUs.
        all_reduce_latency_s: Of one all-reduce, however small.
        host_bytes_per_s: Between HBM and host memory, for swapping: what PCIe 4.0 x16, 32 GB/s, leaves.
        schedule_s, update_s: Of a step on the host, for each chunk of it `overhead_per_chunk_s` more on both sides.
    """

    compute_efficiency: float | int = option(0.6, SHARE)
    bandwidth_efficiency: float | int = option(0.8, SHARE)
    all_reduce_latency_s: float | int = option(10e-6, AT_LEAST_0)
    host_bytes_per_s: float | int = option(25e9, number("a number in [1, 1e21]", lambda x: 1 <= x <= 1e21))
    schedule_s: float | int = option(0.2e-3, AT_LEAST_0)
    update_s: float | int = option(0.3e-3, AT_LEAST_0)
    overhead_per_chunk_s: float | int = option(2e-6, AT_LEAST_0)

    def to_text(self) -> str:
        host_ms = (self.schedule_s + self.update_s) * 1e3
        return (
            f"assumed: {self.compute_efficiency:.0%} of the peak FLOP/s, {self.bandwidth_efficiency:.0%} of the peak "
            f"bandwidth, {self.all_reduce_latency_s * 1e6:g} us per all-reduce; host work of {host_ms:g} ms per step "
            f"and {2 * self.overhead_per_chunk_s * 1e6:g} us more per sequence"
        )


@final
@dataclass(frozen=True, slots=True)
class RooflineCostModel(CostModel):
    """A step is a row of kernels, and each takes as long as its arithmetic or its memory traffic, whichever is longer
    (Williams, Waterman and Patterson, Roofline, CACM 52(4), 2009): the products with weights, the attention of decodes,
    that of prefills, and writing K and V. None hides behind another, which waits for its result. `tensor_parallel` GPUs
    divide all of them evenly, and there are two all-reduces a layer (Megatron-LM, arXiv:1909.08053, section 3):

        run = sum of the kernels' times + all-reduces + swaps
        time = max(FLOPs / (n * peak FLOP/s * efficiency), bytes / (n * bandwidth * efficiency))
        products:   2 * (layer weights * tokens + output weights * samples) FLOPs; the weights' bytes
        attention:  4 * H * D * layers * pairs FLOPs; (keys read + keys written) * K/V bytes per token
        swaps = swapped blocks * bytes per block / (n * host bandwidth)
        all-reduces = 2 * layers * (latency + 2 (n - 1) / n * tokens * hidden * bytes / (link bandwidth * efficiency))

    Of a mixture of experts, FLOPs count a token's own experts, and bytes those that any token of the step has
    (`ModelShape.read_layer_params`). In the dtypes of `shape`, at bfloat16's peak. Left out: activations
    between kernels, the imbalance of real kernels and of experts, and the host's work that overlaps with the GPU's.
    """

    hardware: Hardware
    shape: ModelShape
    tensor_parallel: int = 1
    assumptions: Assumptions = field(default_factory=Assumptions)
    block_size: int = 16

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1 or self.shape.num_kv_heads % self.tensor_parallel:
            raise ConfigError(
                f"tensor parallelism splits the {self.shape.num_kv_heads} key/value heads of {self.shape.name} evenly, "
                f"got {self.tensor_parallel} GPUs."
            )

    def overhead_s(self, num_chunks: int | float) -> tuple[float | int, float | int]:
        more_s = self.assumptions.overhead_per_chunk_s * num_chunks
        return self.assumptions.schedule_s + more_s, self.assumptions.update_s + more_s

    def run_s(self, load: StepLoad) -> float | int:
        kernels_s = sum(self.roofline_s(*work) for work in self.kernels(load))
        block_bytes = self.block_size * self.shape.kv_bytes_per_token
        swaps_s = load.num_moved_blocks * block_bytes / (self.tensor_parallel * self.assumptions.host_bytes_per_s)
        return kernels_s + self.all_reduce_s(load.num_tokens) + swaps_s

    def roofline_s(self, flops: float | int, num_bytes: float | int) -> float | int:
        """Seconds of a kernel that all GPUs share."""
        compute_s = flops / (self.tensor_parallel * self.hardware.flops_per_s * self.assumptions.compute_efficiency)
        memory_s = num_bytes / (
            self.tensor_parallel * self.hardware.bytes_per_s * self.assumptions.bandwidth_efficiency
        )
        return max(compute_s, memory_s)

    def num_blocks(self, memory_share: float | int = 0.9) -> int:
        """K/V blocks beside the weights, in a share of the GPUs' memory.

        Raises:
            ConfigError: The weights leave no room.
        """
        weight_bytes = self.tensor_parallel * self.shape.memory_bytes_on(self.tensor_parallel)
        room = memory_share * self.tensor_parallel * self.hardware.memory_bytes - weight_bytes
        num_blocks = int(room // (self.block_size * self.shape.kv_bytes_per_token))
        if num_blocks < 1:
            raise ConfigError(
                f"{self.shape.name} needs {weight_bytes / 1e9:.0f} GB for its weights, and "
                f"{memory_share:.0%} of {self.tensor_parallel} x {self.hardware.name} are "
                f"{memory_share * self.tensor_parallel * self.hardware.memory_bytes / 1e9:.0f} GB; use more GPUs "
                f"(--tensor-parallel) or a smaller model."
            )
        return num_blocks

    def kernels(self, load: StepLoad) -> tuple[tuple[float | int, float | int], ...]:
        """(FLOPs, bytes) of the products with weights, the attention of decodes, that of prefills, and writing K and V.

        A product of an m x k and a k x n matrix takes 2 m k n operations; q k^T and p v take 2 D each for a query, a
        key and a head.
        """
        shape = self.shape
        flops = 2 * (shape.active_layer_params * load.num_tokens + shape.output_params * load.num_samples)
        in_layers = shape.layer_value_bytes * shape.read_layer_params(load.num_tokens)
        in_output = shape.output_value_bytes * shape.output_params
        per_pair, per_key = 4 * shape.num_heads * shape.head_dim * shape.num_layers, shape.kv_bytes_per_token
        return (
            (flops, in_layers + in_output),
            (per_pair * load.decode_context, per_key * load.decode_context),
            (per_pair * load.prefill_pairs, per_key * load.prefill_context),
            (0, per_key * load.num_tokens),
        )

    def all_reduce_s(self, num_tokens: int | float) -> float | int:
        """A ring moves 2 (n - 1) / n of the data over each link (Patarasuk and Yuan, 2009)."""
        n = self.tensor_parallel
        if n == 1:
            return 0.0
        num_bytes = 2 * (n - 1) / n * num_tokens * self.shape.hidden_size * self.shape.value_bytes
        each_s = self.assumptions.all_reduce_latency_s + num_bytes / (
            self.hardware.link_bytes_per_s * self.assumptions.bandwidth_efficiency
        )
        return 2 * self.shape.num_layers * each_s
