"""Beam search: which tokens the beams of a request go on with, and which texts are the best when it is over.

A beam is a text on its way, scored by the sum of its tokens' log-probabilities. In each step every beam has candidates,
and the best texts made of a beam and a candidate are the beams of the next. The rules are those of transformers'
`generate(num_beams=n, do_sample=False)`, so the texts are too:

- The best n of them all that do not end go on. One that ends counts only if it is among the best n of all.
- The ended ones are ranked by sum of log-probabilities / tokens ** length_penalty, and the best n are kept.
- When to stop is `SamplingParams.early_stopping`'s question. One beam is greedy decoding, and stops when its text ends.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from twophase.core.outputs import FinishReason
from twophase.core.plan import SampledToken
from twophase.core.sampling_params import SamplingParams

Ids = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Beam:
    """A text: its tokens, each with its log-probability; their ids, and the sum of the log-probabilities."""

    tokens: tuple[SampledToken, ...] = ()
    ids: Ids = ()
    logprob: float = 0.0
    finish_reason: FinishReason | None = None

    def followed_by(self, token: SampledToken, finish_reason: FinishReason | None = None) -> "Beam":
        assert token.logprob is not None
        tokens, ids = (*self.tokens, token), (*self.ids, token.token_id)
        return Beam(tokens, ids, self.logprob + token.logprob, finish_reason)

    def score(self, length_penalty: float) -> float:
        return self.logprob / max(1, len(self.tokens)) ** length_penalty


@final
class BeamSearch:
    """The search of one request. It knows texts by their tokens, and nothing of sequences or blocks.

    After a preemption the sequences begin again with fewer tokens than the beams have. Then nothing is chosen: they are
    led along the beams until they have caught up.

    Args:
        params: n, `length_penalty` and `early_stopping`.
        stop_token_ids: Tokens that end a text.
        max_tokens: Of a text; it ends there in any case.

    Attributes:
        beams: Texts on their way, best first, all of them of `num_tokens` tokens.
        ended: The best that have ended, best first, at most n.
        is_over: Nothing goes on.
    """

    def __init__(self, params: SamplingParams, stop_token_ids: Collection[int], max_tokens: int) -> None:
        self.beams: list[Beam] = [Beam()]
        self.ended: list[Beam] = []
        self.num_tokens = 0
        self.is_over = False
        self._width = params.n
        self._params = params
        self._stop_token_ids = frozenset(stop_token_ids)
        self._max_tokens = max_tokens

    @property
    def num_candidates(self) -> int:
        """Of each beam, so many that n texts go on even if all tokens that end one are among them."""
        return max(2, 1 + len(self._stop_token_ids)) * self._width

    @property
    def results(self) -> list[Beam]:
        """The best texts, those that have ended first: all of them when the search is over."""
        return [*self.ended, *([] if self.is_over else self.beams)][: self._width]

    def choose(self, candidates: Mapping[Ids, Sequence[SampledToken]]) -> dict[Ids, tuple[SampledToken, ...]]:
        """Which tokens follow each text: n in all, or none when the search is over.

        Where fewer than n texts go on, the best counts several times, for the others' places stay theirs.

        Args:
            candidates: By text: all beams', best first; or those of texts that the beams begin with.
        """
        if any(len(ids) < self.num_tokens for ids in candidates):
            return {ids: self._tokens_behind(ids) for ids in candidates}
        beam_of = {beam.ids: beam for beam in self.beams}
        chosen = self._advance([(beam_of[ids], token) for ids in beam_of for token in candidates[ids]])
        if not self.is_over:
            chosen += chosen[:1] * (self._width - len(chosen))
        return {ids: tuple(token for beam, token in chosen if beam.ids == ids) for ids in candidates}

    def _tokens_behind(self, ids: Ids) -> tuple[SampledToken, ...]:
        """Of each beam that begins with this text, the token behind it."""
        tokens = [beam.tokens[len(ids)] for beam in self.beams if beam.ids[: len(ids)] == ids]
        if ids == self.beams[0].ids[: len(ids)]:
            tokens += tokens[:1] * (self._width - len(self.beams))
        return tuple(tokens)

    def _advance(self, texts: list[tuple[Beam, SampledToken]]) -> list[tuple[Beam, SampledToken]]:
        """One more token: note what ends, and return what goes on, best first."""
        best = heapq.nlargest(self.num_candidates, texts, key=lambda text: text[0].logprob + (text[1].logprob or 0.0))
        self.num_tokens += 1
        going_on: list[tuple[Beam, SampledToken]] = []
        for place, (beam, token) in enumerate(best):
            reason = self._reason_to_end(token)
            if reason is None:
                going_on.append((beam, token))
            elif place < self._width:
                self.ended.append(beam.followed_by(token, reason))
        self.ended.sort(key=lambda beam: -beam.score(self._params.length_penalty))
        del self.ended[self._width :], going_on[self._width :]
        self.beams = [beam.followed_by(token) for beam, token in going_on]
        self.is_over = not self.beams or self._is_enough()
        return [] if self.is_over else going_on

    def _reason_to_end(self, token: SampledToken) -> FinishReason | None:
        if token.token_id in self._stop_token_ids:
            return "stop"
        return "length" if self.num_tokens >= self._max_tokens else None

    def _is_enough(self) -> bool:
        """Whether n texts have ended and no beam is expected to become better than the worst of them."""
        if len(self.ended) < self._width:
            return False
        if self._params.early_stopping is True or self._width == 1:
            return True
        penalty = self._params.length_penalty
        is_patient = self._params.early_stopping == "never" and penalty > 0
        length = self._max_tokens if is_patient else self.num_tokens
        return self.beams[0].logprob / length**penalty <= self.ended[-1].score(penalty)
