"""A request in the engine: its prompt becomes token ids, its parameters are checked, its state is kept to its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from twophase.core.errors import InvalidRequestError
from twophase.core.plan import SampledToken, SequenceUpdate
from twophase.core.request import (
    CompletionOutput,
    FinishReason,
    Request,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
    TokenLogprobs,
)
from twophase.core.rules import TEXT, Rule, checked, items_of, read_int, shown
from twophase.doors import feature
from twophase.engine.constraint import Constraint, Grammar
from twophase.engine.detokenizer import Detokenizer, TextDecoder

# Text, token ids, {"prompt": text} or {"prompt_token_ids": [...]}; a mapping may also have "cache_salt" and "tenant".
Prompt = str | Mapping[str, Any] | Sequence[int]


@runtime_checkable
class TextCodec(TextDecoder, Protocol):
    """The part of a tokenizer that the engine needs."""

    def encode(self, text: str, *, max_model_len: int | None = None) -> list[int]: ...


def parse_prompt(
    prompt: Prompt,
    codec: TextCodec | None,
    vocab_size: int,
    max_model_len: int | None = None,
    cache_salt: str = "",
    tenant: str = "",
) -> tuple[tuple[int, ...], str | None, str, str]:
    """Check a prompt and encode its text. Returns token ids, the text (None where ids were given), salt and tenant.

    `cache_salt` and `tenant` override the prompt's own. Raises InvalidRequestError if the prompt is not a `Prompt`; it
    is text and there is no tokenizer; it is empty; it is text of `max_model_len` tokens or more, unless None; an id is
    not in the vocabulary; or its salt or tenant is not text.
    """
    name, given = 'prompt["prompt"]', prompt
    if isinstance(prompt, str):
        name, given = "a prompt", {"prompt": prompt}
    elif isinstance(prompt, list | tuple):
        given = {"prompt_token_ids": prompt}
    kind = set(given) - {"cache_salt", "tenant"} if isinstance(given, Mapping) else set()
    if not isinstance(given, Mapping) or kind not in ({"prompt"}, {"prompt_token_ids"}):
        got = f"a mapping with keys {sorted(map(str, given))}" if isinstance(given, Mapping) else shown(given)
        raise InvalidRequestError(f"a prompt is text or {{'prompt_token_ids': [...]}} or a list of ids, got {got}.")
    salt = checked("cache_salt", cache_salt, TEXT) or checked("cache_salt", given.get("cache_salt", ""), TEXT)
    tenant = checked("tenant", tenant, TEXT) or checked("tenant", given.get("tenant", ""), TEXT)
    text, ids = None, given.get("prompt_token_ids")
    if kind == {"prompt"}:
        text = checked(name, given["prompt"], TEXT)
        if codec is None:
            raise InvalidRequestError(
                "the engine has no tokenizer (skip_tokenizer_init, or a model folder without one), so a prompt must be "
                "{'prompt_token_ids': [...]}, got text."
            )
        ids = codec.encode(text, max_model_len=max_model_len)
    return _checked_ids(ids, vocab_size), text, salt, tenant


def _checked_ids(given: Any, vocab_size: int) -> tuple[int, ...]:
    words = f"in [0, {vocab_size}), the model's vocabulary (was the prompt made with another model's tokenizer?)"
    token_ids: tuple[Any, ...] = checked(
        "prompt_token_ids", given, Rule(f"a list of token ids {words}", lambda ids: tuple(items_of(ids)))
    )
    if not token_ids:
        raise InvalidRequestError("the prompt must have at least one token, got none.")
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return token_ids
    rule = Rule(f"a whole number {words}", read_int, lambda token_id: 0 <= token_id < vocab_size)
    return tuple(checked(f"the token id at position {i}", each, rule) for i, each in enumerate(token_ids))


def check_params(params: SamplingParams, codec: TextCodec | None, vocab_size: int) -> None:
    """Raises InvalidRequestError for anything but SamplingParams, and for a stop without a meaning here."""
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError(f"sampling parameters must be SamplingParams(...), got {shown(params)}.")
    if params.stop:
        feature("stop_strings").check_stops(params, codec)
    biased_ids = [token_id for token_id, _ in params.logit_bias]
    for name, token_ids in (("logit_bias", biased_ids), ("stop_token_ids", params.stop_token_ids)):
        if (highest := max(token_ids, default=0)) >= vocab_size:
            raise InvalidRequestError(
                f"{name} must be of tokens in the vocabulary, [0, {vocab_size}), got {highest}, which is never drawn."
            )


@dataclass(slots=True)
class Completion:
    """One of a request's n completions; only its RequestState changes it. See `CompletionOutput`.

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

    def append(self, tokens: Sequence[SampledToken], finish_reason: FinishReason | None) -> str | None:
        """Add tokens, the last of them with `finish_reason`; returns the stop string among them, and drops the rest."""
        num_text = len(tokens) if finish_reason != "stop" or self.include_stop else len(tokens) - 1
        for i, token in enumerate(tokens):
            self.token_ids.append(token.token_id)
            if self.logprobs is not None and token.logprob is not None:
                self.logprobs.append(TokenLogprobs(token.token_id, token.logprob, token.top_logprobs))
            if self.detokenizer is not None and i < num_text:
                matched = self.detokenizer.append(token.token_id)
                if matched is not None:
                    return matched
        return self.detokenizer.finish() if self.detokenizer is not None and finish_reason is not None else None

    def output(self) -> CompletionOutput:
        text = "" if self.detokenizer is None else self.detokenizer.text
        logprobs = None if self.logprobs is None else tuple(self.logprobs)
        total = sum(entry.logprob for entry in logprobs) if logprobs else None
        end = self.finish_reason, self.stop_reason, self.error
        return CompletionOutput(self.index, text, tuple(self.token_ids), logprobs, *end, total)


@dataclass(slots=True)
class RequestState:
    """An unfinished request. Only the engine changes it.

    Attributes:
        stream: Whether every step returns its output, or only the last.
        metrics: Without the tokens' times, which `token_times_s` collects for the output.
        seed: The request's own seed, or a drawn one.
        prompt_logprobs: See `RequestOutput`.
        bias: Its `logit_bias` in the sampler's form, made once for all steps and completions.
    """

    request: Request
    stream: bool
    completions: list[Completion]
    metrics: RequestMetrics
    token_times_s: list[float] = field(default_factory=list)
    seed: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    bias: Any = None

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
        metrics = RequestMetrics(request.arrival_s, None, None, None, (), len(request.prompt_token_ids), 0, 0)
        state = cls(request, stream, completions, metrics)
        if params.logit_bias:
            state.bias = feature("score_edits").bias_of(params)
        if params.prompt_logprobs is not None:
            state.prompt_logprobs = [None]
        return state

    @property
    def is_finished(self) -> bool:
        return all(each.finish_reason is not None for each in self.completions)

    def take(self, update: SequenceUpdate, now_s: float) -> int:
        """Give an update's tokens to its completion; returns the number of tokens added. A stop string among them, or
        an error of the detokenizer, ends the completion."""
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
        if num_new and self.metrics.first_token_s is None:
            self.metrics.first_token_s = now_s
        if update.index == 0:
            self.token_times_s += [now_s] * num_new
        if reason is not None:
            completion.finish_reason, completion.stop_reason, completion.error = reason, stop_reason, error
            self.metrics.finished_s = now_s if self.is_finished else None
        return num_new

    def output(self) -> RequestOutput:
        """The completions so far."""
        request, outputs = self.request, tuple(completion.output() for completion in self.completions)
        metrics = replace(self.metrics, token_times_s=tuple(self.token_times_s))
        prompt_logprobs = None if self.prompt_logprobs is None else tuple(self.prompt_logprobs)
        prompt = request.request_id, request.prompt, request.prompt_token_ids
        return RequestOutput(*prompt, outputs, self.is_finished, metrics, prompt_logprobs)
