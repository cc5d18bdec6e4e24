"""The scheduler's limits."""

from dataclasses import dataclass
from typing import Literal

from twophase.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits on one step and on one sequence. The rules of single options are `EngineConfig`'s.

    Attributes:
        max_num_seqs: Sequences that may run at once; each completion of a request with n > 1 is a sequence.
        max_num_batched_tokens: Tokens computed in one step, at least `max_num_seqs`: every running sequence can then
            decode in every step, and a prefill never waits for the decodes to end.
        max_model_len: Prompt and output tokens of one sequence together.
        enable_chunked_prefill: Spread a prompt over several steps. Without it a prompt is computed in one step, and
            one that does not fit beside the running decodes holds up the queue until they end.
        admission: What letting a request in leaves to those that run, and to itself, to grow into. 'optimistic': a
            block each (of each group of layers), and whoever then finds none makes the last one give up its own.
            'reserve': the worst case, prompt and `max_tokens`, so that none is ever preempted for want of a block.
            'estimate': as many as for an output as long as those that ended (admission.OutputLengths), and a block each
            beyond it.
        reserve_growth: Of 'optimistic' and 'estimate': that block for each sequence that may outgrow its last one, so
            that none is preempted right after someone was let in. Off, a crowded pool thrashes; see lab 4.
        watermark: Besides, admission leaves this share of the pool free, in [0, 1). None running: it need not.
        preemption: What becomes of the K/V of a preempted sequence: 'recompute' drops them, 'swap' saves them in host
            memory, as long as there is room for all of them.
        num_swap_blocks: Blocks of host memory for 'swap'.

    Raises:
        ConfigError: The token budget is below `max_num_seqs`.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    reserve_growth: bool = True
    watermark: int | float = 0.0
    preemption: Literal["recompute", "swap"] = "recompute"
    num_swap_blocks: int = 0
    admission: str = "optimistic"

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens must be at least max_num_seqs, so that every running sequence can decode in "
                f"every step, got {self.max_num_batched_tokens} < {self.max_num_seqs}; raise one or lower the other."
            )
