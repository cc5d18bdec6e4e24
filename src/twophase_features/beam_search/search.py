"""Beam search: a loop over ordinary requests. Each round asks for every beam's likeliest next tokens, and chooses.

A beam is an unfinished text, scored by the sum of its tokens' log-probabilities. The requests of a round share prefixes
with the previous round's, so the prefix cache has all but the last few tokens of each (without one, each round computes
every text from its beginning). Rules and texts are the same as
in transformers' `generate(num_beams=n, do_sample=False)`:

- The best n texts of a beam and one more token that do not end go on. A text that ends counts only if it is among the
  best n of all.
- Ended texts are ranked by sum of log-probabilities / tokens ** length_penalty, and the best n are kept.
- `BeamSearchParams.early_stopping` says when to stop. One beam is greedy decoding, and stops when its text ends.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, final

from twophase.core.errors import InvalidRequestError
from twophase.core.request import FinishReason, Request, RequestMetrics, RequestOutput, SamplingParams, TokenLogprobs
from twophase.core.rules import shown
from twophase.engine.detokenizer import Detokenizer, TextDecoder
from twophase.llm import LLM, PROGRESS_DELAY_S
from twophase_features.beam_search.params import BeamSearchOutput, BeamSearchParams, BeamSearchSequence

Candidates = Sequence[tuple[int, float]]  # next tokens with their log-probabilities, best first
Ask = Callable[[list[dict[str, Any]], SamplingParams], list[RequestOutput]]


@final
@dataclass(frozen=True, slots=True)
class Beam:
    """A text: its tokens with their log-probabilities, and the sum of these."""

    tokens: tuple[TokenLogprobs, ...] = ()
    logprob: float = 0.0
    finish_reason: FinishReason | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(token.token_id for token in self.tokens)

    def followed_by(self, token: TokenLogprobs, finish_reason: FinishReason | None = None) -> "Beam":
        return Beam((*self.tokens, token), self.logprob + token.logprob, finish_reason)

    def score(self, length_penalty: float) -> float:
        return self.logprob / max(1, len(self.tokens)) ** length_penalty


@final
class BeamSearch:
    """The search for one prompt's continuations. It only chooses; it has no model and makes no requests.

    Args:
        params: Its width and rules.
        stop_token_ids: Tokens that end a text.
        max_tokens: Tokens after which a text ends in any case.

    Attributes:
        beams: Unfinished texts, best first, each of `num_tokens` tokens.
        ended: The best finished texts, best first, at most `beam_width`.
        is_over: No beam continues.
    """

    def __init__(self, params: BeamSearchParams, stop_token_ids: Collection[int], max_tokens: int) -> None:
        self.beams: list[Beam] = [Beam()]
        self.ended: list[Beam] = []
        self.num_tokens = 0
        self.is_over = False
        self._params = params
        self._width = params.beam_width
        self._stop_token_ids = frozenset(stop_token_ids)
        self._max_tokens = max_tokens

    @property
    def num_candidates(self) -> int:
        """Candidates per beam: enough for `beam_width` to continue even if all end tokens are likelier."""
        return self._width + len(self._stop_token_ids)

    @property
    def results(self) -> list[Beam]:
        """The best texts, finished ones first: all of them when the search is over."""
        return [*self.ended, *([] if self.is_over else self.beams)][: self._width]

    def advance(self, candidates: Sequence[Candidates]) -> None:
        """One more token: `candidates` has the best `num_candidates` of each of `beams`, in their order."""
        self.num_tokens += 1
        texts = [
            (beam, TokenLogprobs(*next_token, tuple(following)))
            for beam, following in zip(self.beams, candidates, strict=True)
            for next_token in following
            if self._may_follow(*next_token)
        ]
        texts.sort(key=lambda text: -(text[0].logprob + text[1].logprob))
        going_on: list[Beam] = []
        for place, (beam, token) in enumerate(texts):
            reason = self._reason_to_end(token.token_id)
            if reason is None and len(going_on) < self._width:
                going_on.append(beam.followed_by(token))
            elif reason is not None and place < self._width:
                self.ended.append(beam.followed_by(token, reason))
        self.ended.sort(key=lambda beam: -beam.score(self._params.length_penalty))
        del self.ended[self._width :]
        self.beams = going_on
        self.is_over = not self.beams or self._is_enough()

    def _may_follow(self, token_id: int, logprob: float) -> bool:
        is_too_early = token_id in self._stop_token_ids and self.num_tokens <= self._params.min_tokens
        return logprob > -math.inf and not is_too_early

    def _reason_to_end(self, token_id: int) -> FinishReason | None:
        if token_id in self._stop_token_ids:
            return "stop"
        return "length" if self.num_tokens >= self._max_tokens else None

    def _is_enough(self) -> bool:
        """Whether `beam_width` texts have ended and no beam is expected to become better than the worst of them."""
        if len(self.ended) < self._width:
            return False
        if self._params.early_stopping is True or self._width == 1:
            return True
        penalty = self._params.length_penalty
        is_patient = self._params.early_stopping == "never" and penalty > 0
        length = self._max_tokens if is_patient else self.num_tokens
        return self.beams[0].logprob / length**penalty <= self.ended[-1].score(penalty)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTokenParams(SamplingParams):
    """One round's request of one beam: the likeliest next tokens, of the logits divided by `temperature`.

    `logprobs` may exceed the users' limit: a search needs one entry for each beam and each end token.
    """

    def __post_init__(self) -> None:
        pass  # the search's own parameters were validated

    @property
    def is_greedy(self) -> bool:
        return True

    @property
    def logprobs_temperature(self) -> float | int:
        return self.temperature


@final
@dataclass(slots=True)
class _PromptSearch:
    """A search, and the prompt that it continues."""

    request: Request
    params: BeamSearchParams
    search: BeamSearch
    rounds: list[RequestMetrics] = field(default_factory=list)  # of each round's first request
    num_preemptions: int = 0
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.search.is_over or self.error is not None

    def prompts(self) -> list[dict[str, Any]]:
        """The prompts of the next round: each beam's text."""
        request = self.request
        beside = {"cache_salt": request.cache_salt, "tenant": request.tenant}
        return [{"prompt_token_ids": (*request.prompt_token_ids, *beam.ids)} | beside for beam in self.search.beams]

    def take(self, answers: Sequence[RequestOutput]) -> None:
        """A round's answers, in the order of `prompts`."""
        self.rounds.append(answers[0].metrics)
        self.num_preemptions += sum(answer.metrics.num_preemptions for answer in answers)
        found = [answer.outputs[0] for answer in answers]
        self.error = next((each.error for each in found if each.error is not None), None)
        if self.error is None:
            self.search.advance([each.logprobs[0].top for each in found if each.logprobs])

    def output(self, decoder: TextDecoder | None) -> BeamSearchOutput:
        request, first, last = self.request, self.rounds[0], self.rounds[-1]
        metrics = replace(
            first,
            arrival_s=request.arrival_s,
            finished_s=last.finished_s,
            token_times_s=tuple(time_s for each in self.rounds for time_s in each.token_times_s),
            num_preemptions=self.num_preemptions,
        )
        sequences = tuple(self._sequence(beam, decoder) for beam in self.search.results)
        return BeamSearchOutput(request.prompt, request.prompt_token_ids, sequences, metrics)

    def _sequence(self, beam: Beam, decoder: TextDecoder | None) -> BeamSearchSequence:
        """A text of the final result; it carries its request's error, if that failed."""
        has_stop = beam.finish_reason == "stop"
        is_eos = has_stop and beam.ids[-1] in self.request.eos_token_ids and not self.params.ignore_eos
        return BeamSearchSequence(
            tokens=beam.ids,
            text="" if decoder is None else self._text(beam, decoder),
            cum_logprob=beam.logprob,
            score=beam.score(self.params.length_penalty),
            finish_reason=beam.finish_reason or "error",
            stop_reason=beam.ids[-1] if has_stop and not is_eos else None,
            error=None if beam.finish_reason else self.error,
            logprobs=beam.tokens,
        )

    def _text(self, beam: Beam, decoder: TextDecoder) -> str:
        detokenizer = Detokenizer(decoder, self.request.sampling_params, self.request.prompt_token_ids)
        is_cut = beam.finish_reason == "stop" and not self.params.include_stop_str_in_output
        for token_id in beam.ids[:-1] if is_cut else beam.ids:
            detokenizer.append(token_id)
        detokenizer.finish()
        return detokenizer.text


def search(llm: LLM, prompts: Sequence[Any], params: BeamSearchParams, use_tqdm: bool) -> list[BeamSearchOutput]:
    """`LLM.beam_search`. Raises InvalidRequestError as `LLM.generate`, or if `params` are not `BeamSearchParams`."""
    from tqdm import tqdm

    if not isinstance(params, BeamSearchParams):
        raise InvalidRequestError(f"a beam search takes BeamSearchParams(...), got {shown(params)}.")
    limits = params.as_sampling_params()
    requests = [llm.engine.prepare("", prompt, limits).request for prompt in prompts]
    for request in requests:
        llm.scheduler.check(request)
    with tqdm(total=len(requests), unit="req", delay=PROGRESS_DELAY_S, disable=not use_tqdm) as bar:
        return search_beams(
            requests,
            params,
            partial(llm.generate, use_tqdm=False),
            max_model_len=llm.scheduler.config.max_model_len,
            decoder=llm.tokenizer,
            note_end=bar.update,
        )


def search_beams(
    requests: Sequence[Request],
    params: BeamSearchParams,
    ask: Ask,
    *,
    max_model_len: int,
    decoder: TextDecoder | None = None,
    note_end: Callable[[int], object] = lambda count: None,
) -> list[BeamSearchOutput]:
    """Search for the likeliest completions of each prompt, all of them side by side.

    Args:
        requests: The prompts, validated; their parameters are `params.as_sampling_params()`.
        ask: `LLM.generate`, or a function with the same interface.
        max_model_len: Tokens of prompt and text at most.
        decoder: Makes the texts; None leaves them empty.
        note_end: Called after each round with the number of ended searches.
    """
    searches = []
    for request in requests:
        eos_token_ids = frozenset() if params.ignore_eos else request.eos_token_ids
        max_tokens = min(params.max_tokens, max_model_len - len(request.prompt_token_ids))
        search = BeamSearch(params, eos_token_ids.union(params.stop_token_ids), max_tokens)
        searches.append(_PromptSearch(request, params, search))
    while active := [each for each in searches if not each.is_over]:
        num_candidates = active[0].search.num_candidates  # all have the same end-of-text and stop tokens
        next_token = NextTokenParams(
            max_tokens=1, ignore_eos=True, seed=0, temperature=params.temperature or 1.0, logprobs=num_candidates
        )
        prompts = [each.prompts() for each in active]
        answers = iter(ask([prompt for several in prompts for prompt in several], next_token))
        for each, several in zip(active, prompts, strict=True):
            each.take([next(answers) for _ in several])
        note_end(sum(each.is_over for each in active))
    return [each.output(decoder) for each in searches]
