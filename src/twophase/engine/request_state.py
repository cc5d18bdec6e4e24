"""The engine's state of a request until its last completion has ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from twophase.core.plan import SampledToken, SequenceUpdate
from twophase.core.request import CompletionOutput, FinishReason, Request, RequestMetrics, RequestOutput, TokenLogprobs
from twophase.engine.constraint import Constraint, Grammar
from twophase.engine.detokenizer import Detokenizer, TextDecoder
from twophase_features.score_edits import Bias, bias_of


@dataclass(slots=True)
class Completion:
    """One of a request's n completions; only its RequestState changes it.

    Attributes:
        detokenizer: None when the engine has no tokenizer; the text is then empty.
        include_stop: Whether the text of the stop token or string is kept.
        logprobs: One entry per token if requested, else None.
        constraint: Restricts its tokens, for structured outputs.
    """

    index: int
    detokenizer: Detokenizer | None
    include_stop: bool
    logprobs: list[TokenLogprobs] | None
    constraint: Constraint | None = None
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    cumulative_logprob: float | None = None

    def append(self, tokens: Sequence[SampledToken], finish_reason: FinishReason | None) -> str | None:
        """Add tokens, the last of them with `finish_reason`; returns the stop string that they completed.

        Tokens after the completed stop string are dropped.
        """
        num_text = len(tokens) if finish_reason != "stop" or self.include_stop else len(tokens) - 1
        for i, token in enumerate(tokens):
            self.token_ids.append(token.token_id)
            if token.logprob is not None:
                self.cumulative_logprob = (self.cumulative_logprob or 0.0) + token.logprob
            if self.logprobs is not None and token.logprob is not None:
                self.logprobs.append(TokenLogprobs(token.token_id, token.logprob, token.top_logprobs))
            if self.detokenizer is not None and i < num_text:
                matched = self.detokenizer.append(token.token_id)
                if matched is not None:
                    return matched
        return self.detokenizer.finish() if self.detokenizer is not None and finish_reason is not None else None

    def end(self, reason: FinishReason, stop_reason: str | int | None = None, error: str | None = None) -> None:
        self.finish_reason, self.stop_reason, self.error = reason, stop_reason, error

    def output(self) -> CompletionOutput:
        return CompletionOutput(
            index=self.index,
            text="" if self.detokenizer is None else self.detokenizer.text,
            token_ids=tuple(self.token_ids),
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
            cumulative_logprob=self.cumulative_logprob,
        )


class PreparedRequest(NamedTuple):
    """A tokenised request with its compiled grammar, ready for `Engine.add`."""

    request: Request
    grammar: Grammar | None
    stream: bool


@dataclass(slots=True)
class RequestState:
    """An unfinished request. Only the engine changes it.

    Attributes:
        stream: Whether every step returns its output, or only the last.
        num_unfinished: Completions without a finish reason.
        seed: The request's own seed, or a drawn one.
        first_scheduled_s, first_token_s, finished_s, token_times_s: See `RequestMetrics`.
        prompt_logprobs: See `RequestOutput`; as far as they are computed.
        bias: Its `logit_bias` in the sampler's form, made once for all steps and completions.
    """

    request: Request
    stream: bool
    completions: list[Completion]
    num_unfinished: int
    seed: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    token_times_s: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    bias: Bias | None = None

    @classmethod
    def start(
        cls, request: Request, stream: bool, decoder: TextDecoder | None, grammar: Grammar | None = None
    ) -> "RequestState":
        params = request.sampling_params
        may_end = None if grammar is None else grammar.accepts
        completions = [
            Completion(
                index,
                None if decoder is None else Detokenizer(decoder, params, request.prompt_token_ids, may_end),
                params.include_stop_str_in_output,
                None if params.logprobs is None else [],
                None if grammar is None else grammar.constraint(),
            )
            for index in range(params.n)
        ]
        state = cls(request, stream, completions, params.n, bias=bias_of(params))
        if params.prompt_logprobs is not None:
            state.prompt_logprobs = [None]
        return state

    @property
    def is_finished(self) -> bool:
        return self.num_unfinished == 0

    def take(self, update: SequenceUpdate, now_s: float) -> int:
        """Give an update's tokens to its completion; returns the number of tokens added, because a stop string may end
        the run early.

        Ends the completion if the update, a stop string or an error of the detokeniser ends it.
        """
        completion = self.completions[update.index]
        num_before = len(completion.token_ids)
        reason, stop_reason, error = update.finish_reason, update.stop_reason, update.error
        try:
            matched = completion.append(update.tokens, reason)
            if matched is not None:
                reason, stop_reason = "stop", matched
        except Exception as fault:
            reason, error = "error", f"{type(fault).__name__}: {fault}"
        num_new = len(completion.token_ids) - num_before
        if num_new and self.first_token_s is None:
            self.first_token_s = now_s
        if update.index == 0:
            self.token_times_s += [now_s] * num_new
        if reason is not None:
            completion.end(reason, stop_reason, error)
            self.num_unfinished -= 1
            self.finished_s = now_s if self.is_finished else None
        return num_new

    def output(self) -> RequestOutput:
        """The completions so far."""
        request = self.request
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=tuple(completion.output() for completion in self.completions),
            finished=self.is_finished,
            metrics=RequestMetrics(
                arrival_s=request.arrival_s,
                first_scheduled_s=self.first_scheduled_s,
                first_token_s=self.first_token_s,
                finished_s=self.finished_s,
                token_times_s=tuple(self.token_times_s),
                num_prompt_tokens=len(request.prompt_token_ids),
                num_cached_tokens=self.num_cached_tokens,
                num_preemptions=self.num_preemptions,
            ),
            prompt_logprobs=None if self.prompt_logprobs is None else tuple(self.prompt_logprobs),
        )
