"""Beam search by its own names, which are vLLM's; `SamplingParams` has the same for a request among others."""

from dataclasses import dataclass

from twophase.core.outputs import FinishReason, RequestMetrics, RequestOutput, TokenLogprobs
from twophase.core.rules import FLAG, apply_rules, number, whole_number
from twophase.core.sampling_params import EARLY_STOPPING, LENGTH_PENALTY, SamplingParams

RULES = {
    "beam_width": whole_number(at_least=1),
    "max_tokens": whole_number(at_least=1),
    "ignore_eos": FLAG,
    "temperature": number("a finite number >= 0 (0 means 1)", lambda x: x >= 0),
    "length_penalty": LENGTH_PENALTY,
    "early_stopping": EARLY_STOPPING,
    "include_stop_str_in_output": FLAG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """A beam search, as `LLM.beam_search` runs it.

    Attributes:
        beam_width: Beams, and completions that are returned.
        max_tokens: Tokens of a completion at most.
        ignore_eos: Go on past the model's end-of-text ids.
        temperature: The logits are divided by it before log-probabilities are taken; 0, vLLM's default, means 1.
        length_penalty, early_stopping, include_stop_str_in_output: See `SamplingParams`.

    Raises:
        InvalidRequestError: A field breaks its rule.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float | int = 0.0
    length_penalty: float | int = 1.0
    early_stopping: bool | str = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        apply_rules(self, RULES)

    def as_sampling_params(self) -> SamplingParams:
        """The same as a request for any engine."""
        return SamplingParams(
            use_beam_search=True,
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            temperature=self.temperature,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            include_stop_str_in_output=self.include_stop_str_in_output,
        )


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """A completion that a beam search found.

    Attributes:
        tokens: Those generated, an end-of-text token included.
        cum_logprob: Sum of their log-probabilities.
        score: What completions are ranked by: `cum_logprob` / number of tokens ** `length_penalty`.
        finish_reason, stop_reason, error: As in `CompletionOutput`.
    """

    tokens: tuple[int, ...]
    text: str
    cum_logprob: float
    score: float
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """What a beam search found for a prompt: `sequences`, best first."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    sequences: tuple[BeamSearchSequence, ...]
    metrics: RequestMetrics

    @classmethod
    def of(cls, output: RequestOutput, length_penalty: float) -> "BeamSearchOutput":
        """From what an engine returns for `BeamSearchParams.as_sampling_params`."""
        sequences = []
        for found in output.outputs:
            cum_logprob = found.cumulative_logprob or 0.0
            score = cum_logprob / max(1, len(found.token_ids)) ** length_penalty
            ended = found.finish_reason, found.stop_reason, found.error
            sequences.append(
                BeamSearchSequence(found.token_ids, found.text, cum_logprob, score, *ended, found.logprobs)
            )
        return cls(output.prompt, output.prompt_token_ids, tuple(sequences), output.metrics)
