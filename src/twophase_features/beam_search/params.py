"""Parameters and output of a beam search; the names are vLLM's."""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass

from twophase.core.request import RULES, FinishReason, RequestMetrics, SamplingParams, TokenLogprobs
from twophase.core.rules import Rule, apply_rules, number, option, read_flag, rules_of, whole_number

# Parameters shared with `SamplingParams`.
_OF_A_REQUEST = ("max_tokens", "min_tokens", "stop_token_ids", "ignore_eos", "include_stop_str_in_output")
_STOPPING = Rule("True, False or 'never'", lambda value: "never" if value == "never" else read_flag(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """A beam search, as `LLM.beam_search` runs it. Nothing is drawn.

    Attributes:
        beam_width: Beams, and completions that are returned.
        max_tokens, min_tokens, stop_token_ids, ignore_eos, include_stop_str_in_output: See `SamplingParams`. There are
            no stop strings: beams are compared token by token, and a stop string ends a text between them.
        temperature: The logits are divided by it before log-probabilities are taken; 0, vLLM's default, means 1.
        length_penalty: Completions are ranked by sum of log-probabilities / number of tokens ** length_penalty. Above
            0 it favours long ones, because log-probabilities are negative.
        early_stopping: When `beam_width` completions have ended, the search goes on while one of the beams could still
            become better than the worst of them. True: no longer. False: if the best beam, ended now, would be better.
            'never': if it could be, at any length, when `length_penalty` is above 0.

    Raises:
        InvalidRequestError: A field breaks its rule.
    """

    beam_width: int = option(MISSING, whole_number(at_least=1))
    max_tokens: int = option(MISSING, RULES["max_tokens"])
    min_tokens: int = option(0, RULES["min_tokens"])
    stop_token_ids: Sequence[int] = option((), RULES["stop_token_ids"])
    ignore_eos: bool = option(False, RULES["ignore_eos"])
    temperature: float | int = option(0.0, number("a finite number >= 0 (0 means 1)", lambda x: x >= 0))
    length_penalty: float | int = option(1.0, number("a finite number"))
    early_stopping: bool | str = option(False, _STOPPING)
    include_stop_str_in_output: bool = option(False, RULES["include_stop_str_in_output"])

    def __post_init__(self) -> None:
        apply_rules(self, rules_of(BeamSearchParams))
        self.as_sampling_params()

    def as_sampling_params(self) -> SamplingParams:
        """The limits on length and the stop conditions, as a request's parameters."""
        return SamplingParams(**{name: getattr(self, name) for name in _OF_A_REQUEST})


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """A completion found by a beam search.

    Attributes:
        tokens: The generated tokens, an end-of-text token included.
        cum_logprob: Sum of their log-probabilities.
        score: The rank: `cum_logprob` / number of tokens ** `length_penalty`.
        finish_reason, stop_reason, error: As in `CompletionOutput`.
        logprobs: One entry per token, with the candidates that the search chose among as the most likely ones.
    """

    tokens: tuple[int, ...]
    text: str
    cum_logprob: float
    score: float
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The completions of one prompt: `sequences`, best first."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    sequences: tuple[BeamSearchSequence, ...]
    metrics: RequestMetrics
