"""What a simulation remembers about a request until its last completion has ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from twophase.core.plan import BlockKey
from twophase.core.request import FinishReason, Request
from twophase_tools.load.records import RequestRecord


@dataclass(slots=True)
class CompletionProgress:
    """One of a request's completions: its tokens so far, and how it ended."""

    num_tokens: int = 0
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class PrefilledElsewhere:
    """When another engine began with a prompt, what it found in its prefix cache, and the blocks that it sent."""

    first_scheduled_s: float | int | None
    num_cached_tokens: int
    page_keys: Sequence[BlockKey]


@dataclass(slots=True)
class RequestProgress:
    """A request on its way. Only its Replica changes it.

    Attributes:
        num_unfinished: Completions that go on, those not forked yet included.
        elsewhere: What another engine did for its prompt, if one did.
        token_times_s: When each token of completion 0 was there.
    """

    request: Request
    completions: tuple[CompletionProgress, ...]
    num_unfinished: int
    first_scheduled_s: float | int | None = None
    finished_s: float | int | None = None
    token_times_s: list[float | int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    elsewhere: PrefilledElsewhere | None = None

    @classmethod
    def start(cls, request: Request) -> "RequestProgress":
        n = request.sampling_params.n
        return cls(request, tuple(CompletionProgress() for _ in range(n)), n)

    def go_on(self, request: Request, page_keys: Sequence[BlockKey]) -> "RequestProgress":
        """The life of `request` on another engine, which gets blocks of the prompt that this one computed; it counts
        from the arrival here."""
        later = RequestProgress.start(replace(request, arrival_s=self.request.arrival_s))
        later.elsewhere = PrefilledElsewhere(self.first_scheduled_s, self.num_cached_tokens, page_keys)
        later.num_preemptions = self.num_preemptions
        return later

    @property
    def num_output_tokens(self) -> int:
        return sum(completion.num_tokens for completion in self.completions)

    def record(self) -> RequestRecord:
        """What became of it."""
        reasons = [completion.finish_reason for completion in self.completions]
        is_over = self.finished_s is not None
        return RequestRecord(
            request_id=self.request.request_id,
            arrival_s=self.request.arrival_s,
            first_scheduled_s=self.first_scheduled_s,
            token_times_s=tuple(self.token_times_s),
            finished_s=self.finished_s,
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            finish_reason=next((r for r in reasons if r in ("error", "abort")), reasons[0]) if is_over else None,
            num_sibling_tokens=sum(completion.num_tokens for completion in self.completions[1:]),
        )
