"""What became of one request: the facts that every latency is computed from."""

import math
from dataclasses import dataclass
from itertools import chain, pairwise

from twophase.core.errors import TwophaseError
from twophase.core.request import FinishReason, RequestOutput
from twophase_tools.load.slo import Slo


class RecordError(TwophaseError, ValueError):
    """A request's times or counts contradict each other; names the request and both values."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times in seconds on one clock; None: it has not happened. Made by an engine or by a simulator.

    Worked example: arrival 0, tokens at 2, 3 and 5 s, finished at 5 s: TTFT 2 s, ITLs 1 and 2 s, TPOT 1.5 s,
    latency 5 s.

    Attributes:
        arrival_s: When it was asked for, which under open-loop load may be before the engine heard of it.
        first_scheduled_s: When a step that computes some of it was first planned.
        token_times_s: When each token of completion 0 was there.
        finished_s: When its last completion ended, however it ended.
        num_cached_tokens: Prompt tokens whose K/V came from the prefix cache at the first admission.
        num_preemptions: Times its sequences lost their blocks.
        finish_reason: None while unfinished; 'error' or 'abort' if any completion ended so, else completion 0's.
        num_sibling_tokens: Tokens of the completions beyond the first: work done, but no times are known.

    Raises:
        RecordError: A time before the one it must follow or not finite, or an impossible count.
    """

    request_id: str
    arrival_s: float | int
    first_scheduled_s: float | int | None
    token_times_s: tuple[float | int, ...]
    finished_s: float | int | None
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    num_sibling_tokens: int = 0

    def __post_init__(self) -> None:
        self._check_counts()
        times = self.token_times_s
        marks = chain((self.arrival_s, self.first_scheduled_s), times, (self.finished_s,))
        happened = [mark for mark in marks if mark is not None]
        for earlier, later in pairwise([happened[0], *happened]):
            if not (math.isfinite(later) and earlier <= later):
                raise RecordError(
                    f"request {self.request_id!r}: arrival, first scheduling, tokens and end must be finite times in "
                    f"this order, got {later} s after {earlier} s; are they on one clock?"
                )
        if times and self.first_scheduled_s is None:
            raise RecordError(f"request {self.request_id!r} has {len(times)} tokens and was never scheduled.")

    def _check_counts(self) -> None:
        for name in ("num_prompt_tokens", "num_cached_tokens", "num_preemptions", "num_sibling_tokens"):
            if getattr(self, name) < 0:
                raise RecordError(f"request {self.request_id!r}: {name} must be >= 0, got {getattr(self, name)}.")
        if self.num_cached_tokens > self.num_prompt_tokens:
            raise RecordError(
                f"request {self.request_id!r}: num_cached_tokens={self.num_cached_tokens} of a prompt of "
                f"num_prompt_tokens={self.num_prompt_tokens}; only prompt tokens count."
            )
        if (self.finished_s is None) != (self.finish_reason is None):
            raise RecordError(
                f"request {self.request_id!r}: finished_s={self.finished_s} and finish_reason={self.finish_reason!r} "
                f"come together or not at all."
            )

    @classmethod
    def from_output(cls, output: RequestOutput) -> "RequestRecord":
        """What an engine's output tells, finished or not."""
        metrics = output.metrics
        reasons = [completion.finish_reason for completion in output.outputs]
        bad = [reason for reason in reasons if reason in ("error", "abort")]
        return cls(
            request_id=output.request_id,
            arrival_s=metrics.arrival_s,
            first_scheduled_s=metrics.first_scheduled_s,
            token_times_s=metrics.token_times_s,
            finished_s=metrics.finished_s,
            num_prompt_tokens=metrics.num_prompt_tokens,
            num_cached_tokens=metrics.num_cached_tokens,
            num_preemptions=metrics.num_preemptions,
            finish_reason=(bad or reasons)[0] if output.finished else None,
            num_sibling_tokens=sum(len(completion.token_ids) for completion in output.outputs[1:]),
        )

    @property
    def is_completed(self) -> bool:
        """It ran to its end: not unfinished, not aborted, not failed."""
        return self.finish_reason in ("stop", "length")

    @property
    def num_output_tokens(self) -> int:
        """Of all its completions."""
        return len(self.token_times_s) + self.num_sibling_tokens

    @property
    def queue_s(self) -> float | int | None:
        """From arrival to the first scheduling."""
        return None if self.first_scheduled_s is None else self.first_scheduled_s - self.arrival_s

    @property
    def ttft_s(self) -> float | int | None:
        """Time to first token, from arrival, so queueing is in it."""
        return self.token_times_s[0] - self.arrival_s if self.token_times_s else None

    @property
    def itls_s(self) -> tuple[float | int, ...]:
        """Inter-token latencies: the gap before each token but the first; what a reader of the stream feels."""
        return tuple(later - earlier for earlier, later in pairwise(self.token_times_s))

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: the mean of the inter-token latencies; None with fewer than two tokens."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def latency_s(self) -> float | int | None:
        """End to end, from arrival to the end."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s

    def meets(self, slo: Slo | None) -> bool | None:
        """Whether it ran to its end within the SLO; None without one."""
        return None if slo is None else self.is_completed and slo.is_met(self.ttft_s, self.tpot_s)
