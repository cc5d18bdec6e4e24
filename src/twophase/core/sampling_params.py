"""How the tokens of one request are chosen. Names and defaults follow vLLM's class of the same name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import (
    FLAG,
    NON_EMPTY_TEXT,
    Rule,
    apply_rules,
    items_of,
    number,
    optional,
    read_int,
    several,
    shown,
    whole_number,
)
from twophase_features.structured_outputs.params import StructuredOutputs

MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1  # a key of the random numbers has 64 bits (`twophase.engine.philox`)
# Beyond these a penalised logit may leave the range of float32, and draws lose their meaning.
MIN_PENALTY, MAX_PENALTY = 0.01, 100.0
MAX_OUTPUT_PENALTY = 2.0  # as in OpenAI's interface and vLLM
MAX_BIAS = 100.0
# Every token's step goes through all of them, in Python.
MAX_STOPS, MAX_STOP_CHARACTERS, MAX_STOP_TOKEN_IDS = 32, 256, 1024


def _read_top_k(value: Any) -> int:
    """-1 is vLLM's way to say 0."""
    return 0 if (count := read_int(value)) == -1 else COUNT.read(count)


def _read_stop(value: Any) -> str:
    text: str = NON_EMPTY_TEXT.read(value)
    if len(text) > MAX_STOP_CHARACTERS:
        raise ValueError
    return text


def _read_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Pairs (token id, bias) in the order of their ids; each token once."""
    if value is None:
        return ()
    pairs = value.items() if isinstance(value, Mapping) else items_of(value)
    return tuple(sorted({COUNT.read(token_id): BIAS.read(bias) for token_id, bias in pairs}.items()))


COUNT = whole_number(at_least=0)  # a token id, too
BIAS = number(f"in [-{MAX_BIAS:g}, {MAX_BIAS:g}]", lambda x: abs(x) <= MAX_BIAS)
OUTPUT_PENALTY = number(
    f"in [-{MAX_OUTPUT_PENALTY:g}, {MAX_OUTPUT_PENALTY:g}] (0: no penalty)", lambda x: abs(x) <= MAX_OUTPUT_PENALTY
)
LOGPROBS = optional(whole_number(at_least=0, at_most=MAX_LOGPROBS))

RULES = {
    "n": whole_number(at_least=1),
    "temperature": number("a finite number >= 0 (0 is greedy)", lambda x: x >= 0),
    "top_k": Rule(f"{COUNT.words} (0 or -1 keeps every token)", _read_top_k),
    "top_p": number("in (0, 1] (1 keeps every token)", lambda x: 0 < x <= 1),
    "min_p": number("in [0, 1] (0 keeps every token)", lambda x: 0 <= x <= 1),
    "repetition_penalty": number(
        f"in [{MIN_PENALTY:g}, {MAX_PENALTY:g}] (1: no penalty)", lambda x: MIN_PENALTY <= x <= MAX_PENALTY
    ),
    "presence_penalty": OUTPUT_PENALTY,
    "frequency_penalty": OUTPUT_PENALTY,
    "seed": optional(whole_number(at_least=0, at_most=MAX_SEED)),
    "max_tokens": whole_number(at_least=1),
    "min_tokens": COUNT,
    "stop": several(
        Rule("", _read_stop),
        of_one=str,
        words=f"text or a list of at most {MAX_STOPS} texts (stop strings must be non-empty, and have at most "
        f"{MAX_STOP_CHARACTERS} characters)",
        at_most=MAX_STOPS,
    ),
    "stop_token_ids": several(
        COUNT,
        words=f"a list of at most {MAX_STOP_TOKEN_IDS} token ids, whole numbers >= 0",
        at_most=MAX_STOP_TOKEN_IDS,
    ),
    "ignore_eos": FLAG,
    "include_stop_str_in_output": FLAG,
    "skip_special_tokens": FLAG,
    "logit_bias": Rule(f"a mapping of token ids, whole numbers >= 0, to numbers {BIAS.words}", _read_bias),
    "logprobs": LOGPROBS,
    "prompt_logprobs": LOGPROBS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request.

    Order of application: logit bias, repetition penalty, presence and frequency penalties, structured outputs,
    temperature, top-k, top-p, min-p. `temperature=0` is greedy decoding and ignores the truncations.

    A value outside its range (`RULES`) raises InvalidRequestError.

    Attributes:
        n: Completions for the prompt; they share its K/V blocks and diverge by copy-on-write.
        temperature: Logits are divided by it; 0 means argmax.
        top_k: Keep the k most likely tokens; 0 keeps all, and so does -1, which becomes 0.
        top_p: Keep the smallest set of most likely tokens with at least this probability mass.
        min_p: Drop tokens less likely than `min_p` times the most likely one.
        repetition_penalty: Logits of tokens already seen are divided by it when positive, else multiplied (CTRL,
            arXiv:1909.05858, section 4.1).
        presence_penalty: Taken once from the logit of each token that the completion has already.
        frequency_penalty: Taken from that logit as often as the completion has the token. Neither counts the prompt.
        seed: Makes the request's draws reproducible, alone or in any batch. None draws a fresh seed.
        max_tokens: Tokens to generate at most.
        min_tokens: Tokens to generate before the completion may end by itself: until then no token is drawn that would
            end it, and stop strings are text like any other. At most `max_tokens`.
        stop: Strings that end the completion; the text is cut before the string. One string is a list of one, None is
            an empty list. The text of a special token, "<|im_end|>" say, also stands for that token, which has no text
            otherwise.
        stop_token_ids: Token ids that end the completion, besides the model's end-of-text ids.
        ignore_eos: Go on past the model's end-of-text ids (benchmarks).
        include_stop_str_in_output: Keep the matched stop string in the text.
        skip_special_tokens: Leave special tokens out of the text.
        logit_bias: Added to the logits of these tokens, {id: bias}; -100 practically forbids a token, 100 practically
            forces it. Kept as pairs (id, bias).
        logprobs: Report this many of the most likely tokens' log-probabilities at each position, besides the chosen
            token's; None reports none, 0 the chosen token's alone. They describe the model's distribution
            (before structured outputs, temperature and truncation), in nats.
        prompt_logprobs: Likewise for the prompt, given the tokens before: its own tokens' log-probabilities and this
            many of the most likely tokens', once for all n completions. They cost the last linear layer at every
            position of the prompt instead of the last one; `SCORED_ROWS` positions are computed at a time, so that a
            step needs no more memory. The prompt is computed from its beginning: its prefix is cached for others, and
            not looked up.
        structured_outputs: The form of the text; None: any. A completion that ends by 'stop' has the form; after
            'length' it may be incomplete. Stop strings and stop token ids act where the text before them has the form,
            and are passed over elsewhere.
    """

    n: int = 1
    temperature: float | int = 1.0
    top_k: int = 0
    top_p: float | int = 1.0
    min_p: float | int = 0.0
    repetition_penalty: float | int = 1.0
    presence_penalty: float | int = 0.0
    frequency_penalty: float | int = 0.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logit_bias: Any = ()  # Mapping[int, float], or the pairs of one
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        apply_rules(self, RULES)
        if self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must not exceed max_tokens, got {self.min_tokens} > {self.max_tokens}; raise max_tokens, "
                f"or lower min_tokens."
            )
        if self.structured_outputs is not None:
            self._check_structured_outputs()

    def _check_structured_outputs(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputs):
            raise InvalidRequestError(
                f"structured_outputs must be StructuredOutputs(json=...), (regex=...) or (choice=...), got "
                f"{shown(self.structured_outputs)}."
            )
        for name in ("ignore_eos", "include_stop_str_in_output", "min_tokens"):
            if getattr(self, name):
                raise InvalidRequestError(
                    f"structured_outputs and {name}={getattr(self, name)} contradict each other: text after the output "
                    f"would be part of the output. Leave out one of them."
                )

    @property
    def penalises_output(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, without a draw."""
        return self.temperature == 0

    @property
    def logprobs_temperature(self) -> float | int:
        """Divides the logits before log-probabilities are taken; 1 except in a beam search (`NextTokenParams`)."""
        return 1
