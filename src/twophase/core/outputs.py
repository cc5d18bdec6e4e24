"""The results of a request. Names follow vLLM's `RequestOutput`."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities in nats at one position: of the token there, and of the most likely tokens, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: 0 .. n-1.
        text: Detokenised output, cut before a stop string.
        token_ids: Every generated token, an end-of-text or stop token included.
        logprobs: One entry per token when `SamplingParams.logprobs` was set, else None.
        finish_reason: None while running; 'stop' (end-of-text, stop string or id), 'length', 'abort' or 'error'.
        stop_reason: The stop string or token id that ended it, if one did.
        error: The error's text, when `finish_reason` is 'error'.
        cumulative_logprob: Sum of its tokens' log-probabilities, if requested; else None.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    cumulative_logprob: float | None = None


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to one request, in seconds on the engine's monotonic clock; None: not yet.

    Attributes:
        token_times_s: When each token of completion 0 was sampled.
        num_cached_tokens: Prompt tokens whose K/V came from the prefix cache at the first admission.
        num_preemptions: Times its sequences lost their blocks.
    """

    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    finished_s: float | None
    token_times_s: tuple[float, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_preemptions: int

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from arrival."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two tokens."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def latency_s(self) -> float | None:
        """End to end, from arrival to the last token."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's completions so far; `finished` when every one of them has a finish reason.

    Attributes:
        prompt_logprobs: One entry per prompt token when `SamplingParams.prompt_logprobs` was set, else None. The first
            entry is None, because the first token has no context; the last entries are missing until they are computed.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One entry of the engine's trace: the work of a step, and its cost.

    Attributes:
        step: Counts from 0.
        start_s, schedule_s, run_s, update_s: Clock at the start; durations of scheduling, running (forward and
            sampling) and bookkeeping.
        chunks: (request id, completion index, start position, tokens) of each chunk, in batch order.
        num_decodes: The first chunks, which are decodes of one token.
        preempted: (request id, completion index) that lost their blocks.
        finished: (request id, completion index) that ended in this step.
        num_waiting, num_running: After the step.
        blocks_in_use, blocks_cached, blocks_free: After the step; cached blocks are evictable.
        blocks_offloaded, blocks_loaded: Moved to and from host memory in this step.
        slots_in_use: Slots of the blocks in use that hold a token, after the step; None where they are not counted.
        num_verifying: Chunks after the decodes that are decodes with drafts behind their token.
        num_draft_tokens, num_accepted_tokens: Drafts in them, and drafts that the model accepted.
        prefix_cache_queries, prefix_cache_hits: Tokens of the prompts admitted since the step before, and how many of
            them were found in the cache.
        queue_age_s: How long the oldest request that was never scheduled has waited, at the end of the step; None if
            no request waits, or if it is not measured.
    """

    step: int
    start_s: float
    schedule_s: float
    run_s: float
    update_s: float
    chunks: tuple[tuple[str, int, int, int], ...]
    num_decodes: int
    preempted: tuple[tuple[str, int], ...]
    finished: tuple[tuple[str, int], ...]
    num_waiting: int
    num_running: int
    blocks_in_use: int
    blocks_cached: int
    blocks_free: int
    blocks_offloaded: int = 0
    blocks_loaded: int = 0
    slots_in_use: int | None = None
    num_verifying: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    queue_age_s: float | None = None

    @property
    def kv_cache_usage(self) -> float:
        """Share of the pool's blocks that a sequence holds, after the step; vLLM's kv_cache_usage_perc."""
        return self.blocks_in_use / (self.blocks_in_use + self.blocks_cached + self.blocks_free)

    @property
    def num_decode_tokens(self) -> int:
        """Tokens computed for sequences that decode, drafts included."""
        return self.num_decodes + self.num_verifying + self.num_draft_tokens
