"""What a simulation remembers about a request until its last completion has ended."""

from dataclasses import dataclass, field

from twophase.core.outputs import CompletionOutput, FinishReason, RequestMetrics, RequestOutput
from twophase.core.request import Request


@dataclass(slots=True)
class CompletionProgress:
    """One of a request's completions: its tokens so far, when the latest of them was there, and how it ended."""

    num_tokens: int = 0
    last_token_s: float | int | None = None
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class RequestProgress:
    """A request on its way. Only its Replica changes it; observers read it when it has ended.

    Attributes:
        num_unfinished: Completions that go on, those not forked yet included.
        token_times_s: When each token of completion 0 was there; stays empty unless an observer wants them.
    """

    request: Request
    completions: tuple[CompletionProgress, ...]
    num_unfinished: int
    first_scheduled_s: float | int | None = None
    first_token_s: float | int | None = None
    finished_s: float | int | None = None
    token_times_s: list[float | int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @classmethod
    def start(cls, request: Request) -> "RequestProgress":
        n = request.sampling_params.n
        return cls(request, tuple(CompletionProgress() for _ in range(n)), n)

    @property
    def num_output_tokens(self) -> int:
        return sum(completion.num_tokens for completion in self.completions)

    @property
    def ttft_s(self) -> float | int | None:
        return None if self.first_token_s is None else self.first_token_s - self.request.arrival_s

    @property
    def tpot_s(self) -> float | int | None:
        """Mean time per token of completion 0 after its first; None with fewer than two."""
        first = self.completions[0]
        if first.num_tokens < 2 or first.last_token_s is None or self.first_token_s is None:
            return None
        return (first.last_token_s - self.first_token_s) / (first.num_tokens - 1)

    def metrics(self) -> RequestMetrics:
        return RequestMetrics(
            arrival_s=float(self.request.arrival_s),
            first_scheduled_s=_float(self.first_scheduled_s),
            first_token_s=_float(self.first_token_s),
            finished_s=_float(self.finished_s),
            token_times_s=tuple(map(float, self.token_times_s)),
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
        )

    def output(self) -> RequestOutput:
        """As the engine would return it; nobody computed the tokens, so all of them are -1."""
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=tuple(
                CompletionOutput(index, "", (-1,) * completion.num_tokens, finish_reason=completion.finish_reason)
                for index, completion in enumerate(self.completions)
            ),
            finished=self.num_unfinished == 0,
            metrics=self.metrics(),
        )


def _float(value: float | int | None) -> float | None:
    return None if value is None else float(value)
