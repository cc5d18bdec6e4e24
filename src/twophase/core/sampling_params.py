"""How the tokens of one request are chosen. Names and defaults follow vLLM's class of the same name."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.core.errors import InvalidRequestError
from twophase.core.structured_outputs import StructuredOutputs

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request.

    Order of application: repetition penalty, structured outputs, temperature, top-k, top-p, min-p. `temperature=0` is
    greedy decoding and ignores the truncations.

    Attributes:
        n: Completions for the prompt; they share its pages and diverge by copy-on-write.
        temperature: Logits are divided by it; 0 means argmax.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens with at least this probability mass, in (0, 1].
        min_p: Drop tokens less likely than `min_p` times the most likely one, in [0, 1].
        repetition_penalty: > 0; logits of tokens already seen are divided by it when positive, else multiplied
            (CTRL, arXiv:1909.05858, section 4.1).
        seed: Makes the request's draws reproducible, alone or in any batch; None draws a fresh seed.
        max_tokens: Tokens to generate at most, >= 1.
        stop: Strings that end the completion; the text is cut before the match.
        stop_token_ids: Token ids that end the completion, besides the model's end-of-text ids.
        ignore_eos: Go on past the model's end-of-text ids (benchmarks).
        include_stop_str_in_output: Keep the matched stop string in the text.
        skip_special_tokens: Leave special tokens out of the text.
        logprobs: Report this many of the most likely tokens' log-probabilities at each position, besides the chosen
            token's; None reports none, 0 the chosen token's alone. They describe the model's distribution
            (before structured outputs, temperature and truncation), in nats.
        structured_outputs: The form that the text must have; None: any. A completion that ends by 'stop' has it. One
            cut by `max_tokens` or the context limit ends by 'length', as ever, and may be incomplete. Stop strings and
            stop token ids act where the text before them has the form, and are passed over elsewhere.
    """

    n: int = 1
    temperature: float | int = 1.0
    top_k: int = 0
    top_p: float | int = 1.0
    min_p: float | int = 0.0
    repetition_penalty: float | int = 1.0
    seed: int | None = None
    max_tokens: int = 16
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        _require_int("n", self.n, at_least=1)
        _require_int("top_k", self.top_k, at_least=0)
        _require_int("max_tokens", self.max_tokens, at_least=1)
        if self.seed is not None:
            _require_int("seed", self.seed, at_least=0)
        if self.logprobs is not None:
            _require_int("logprobs", self.logprobs, at_least=0)
            if self.logprobs > MAX_LOGPROBS:
                raise InvalidRequestError(f"logprobs must be at most {MAX_LOGPROBS}, got {self.logprobs}.")
        _require("temperature", self.temperature, "a finite number >= 0 (0 is greedy)", lambda x: x >= 0)
        _require("top_p", self.top_p, "in (0, 1] (1 keeps every token)", lambda x: 0 < x <= 1)
        _require("min_p", self.min_p, "in [0, 1] (0 keeps every token)", lambda x: 0 <= x <= 1)
        _require("repetition_penalty", self.repetition_penalty, "a finite number > 0 (1 is none)", lambda x: x > 0)
        for stop in self.stop:
            if not isinstance(stop, str) or not stop:
                raise InvalidRequestError(f"stop strings must be non-empty text, got {stop!r}; leave it out instead.")
        for token_id in self.stop_token_ids:
            _require_int("each of stop_token_ids", token_id, at_least=0)
        if self.structured_outputs is not None:
            self._check_structured_outputs()

    def _check_structured_outputs(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputs):
            raise InvalidRequestError(
                f"structured_outputs must be StructuredOutputs(json=...), (regex=...) or (choice=...), got "
                f"{self.structured_outputs!r}."
            )
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if getattr(self, name):
                raise InvalidRequestError(
                    f"structured_outputs and {name}=True contradict each other: what follows the text would be part "
                    f"of the output. Leave out one of them."
                )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


def _require(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not holds(value):
        raise InvalidRequestError(f"{name} must be {rule}, got {value!r}.")


def _require_int(name: str, value: Any, *, at_least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidRequestError(f"{name} must be a whole number >= {at_least}, got {value!r}.")
