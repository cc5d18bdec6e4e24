"""The scheduler's limits."""

from dataclasses import dataclass

from twophase.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits on one step and on one sequence.

    Attributes:
        max_num_seqs: Sequences that may run at once; each completion of a request with n > 1 is a sequence.
        max_num_batched_tokens: Tokens computed in one step, at least `max_num_seqs`: every running sequence can then
            decode in every step, and a prefill never waits for the decodes to end.
        max_model_len: Prompt and output tokens of one sequence together.
        enable_chunked_prefill: Spread a prompt over several steps. Without it a prompt is computed in one step, and
            one that does not fit beside the running decodes holds up the queue until they end.

    Raises:
        ConfigError: a limit below 1, or a token budget below `max_num_seqs`.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens must be at least max_num_seqs, so that every running sequence can decode in "
                f"every step, got {self.max_num_batched_tokens} < {self.max_num_seqs}; raise one or lower the other."
            )
