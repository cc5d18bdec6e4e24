"""The scheduler's limits."""

from dataclasses import dataclass

from twophase.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits on one step and on one sequence. `EngineConfig` checks each option by itself; here they must fit together.

    Attributes:
        max_num_seqs: Sequences that may run at once; each completion of a request with n > 1 is a sequence.
        max_num_batched_tokens: Tokens computed in one step, at least `max_num_seqs`: every running sequence can then
            decode in every step, and a prefill never waits for the decodes to end.
        max_model_len: Prompt and output tokens of one sequence together.
        enable_chunked_prefill: Spread a prompt over several steps. Without it a prompt is computed in one step, and a
            prompt that does not fit beside the running decodes holds up the queue until they end.
        admission: How many free blocks an admission leaves to the running sequences and the admitted one to grow into.
            'optimistic': one block for each sequence (in each group of layers); a sequence that later finds no free
            block preempts the sequence of worst rank. 'reserve': the worst case, prompt and `max_tokens`, so that no
            sequence is preempted for want of a block. 'estimate': the blocks of an output of the average length so far
            (`admission.OutputLengths`); one block more for a sequence that is longer already.
        reserve_growth: Whether 'optimistic' and 'estimate' leave that one block, so that no sequence is preempted right
            after an admission. Without it a crowded pool thrashes; see lab 4.
        watermark: Share of the pool in [0, 1) that an admission leaves free as well, unless no sequence runs.

    Raises:
        ConfigError: The token budget is below `max_num_seqs`.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    reserve_growth: bool = True
    watermark: int | float = 0.0
    admission: str = "optimistic"

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens must be at least max_num_seqs, so that every running sequence can decode in "
                f"every step, got {self.max_num_batched_tokens} < {self.max_num_seqs}; raise one or lower the other."
            )
