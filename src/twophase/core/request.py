"""A request: its prompt, how its tokens are chosen, and its outputs. Names and defaults follow vLLM's."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import (
    FLAG,
    TEXT,
    Rule,
    apply_rules,
    items_of,
    number,
    option,
    optional,
    rules_of,
    whole_number,
)
from twophase.doors import feature

MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1  # a key of the random numbers has 64 bits (`twophase.engine.philox`)
# Each generated token is checked against all of them, in Python.
MAX_STOPS, MAX_STOP_CHARACTERS, MAX_STOP_TOKEN_IDS = 32, 256, 1024

_COUNT = whole_number(at_least=0)  # a token id, too
_LOGPROBS = optional(whole_number(at_least=0, at_most=MAX_LOGPROBS))
_STOP = Rule("", TEXT.read, lambda text: 0 < len(text) <= MAX_STOP_CHARACTERS)
_BIAS = number("in [-100, 100]", lambda x: abs(x) <= 100)
# Beyond these bounds a penalised logit may leave the range of float32, and draws lose their meaning.
_REPETITION_PENALTY = number("in [0.01, 100] (1: no penalty)", lambda x: 0.01 <= x <= 100)
_OUTPUT_PENALTY = number("in [-2, 2] (0: no penalty)", lambda x: abs(x) <= 2)  # as in OpenAI's interface and vLLM
_TOP_K = Rule(
    "a whole number >= 0 (0 or -1 keeps every token)",
    lambda value: max(0, whole_number(at_least=-1).read(value)),  # -1 is vLLM's way to say 0
)


def _listed(value: Any) -> Iterable[Any]:
    """One text is a list of one, None an empty list."""
    return [value] if isinstance(value, str) else () if value is None else items_of(value)


def _read_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """Pairs (token id, bias) in the order of their ids; each token once."""
    pairs = value.items() if isinstance(value, Mapping) else _listed(value)
    return tuple(sorted({_COUNT.read(token_id): _BIAS.read(bias) for token_id, bias in pairs}.items()))


_LOGIT_BIAS = Rule(f"a mapping of token ids, whole numbers >= 0, to numbers {_BIAS.words}", _read_bias)
_STOPS = Rule(
    f"text or a list of at most {MAX_STOPS} texts (stop strings must be non-empty, and have at most "
    f"{MAX_STOP_CHARACTERS} characters)",
    lambda value: tuple(map(_STOP.read, _listed(value))),
    lambda stops: len(stops) <= MAX_STOPS,
)
_STOP_TOKEN_IDS = Rule(
    f"a list of at most {MAX_STOP_TOKEN_IDS} token ids, whole numbers >= 0",
    lambda value: tuple(map(_COUNT.read, _listed(value))),
    lambda ids: len(ids) <= MAX_STOP_TOKEN_IDS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request. A value that breaks its rule raises InvalidRequestError.

    Order of application: logit bias, repetition penalty, presence and frequency penalties, structured outputs,
    temperature, top-k, top-p, min-p.

    Attributes:
        n: Completions for the prompt; they share its K/V blocks and diverge by copy-on-write.
        temperature: Logits are divided by it, and 0 means argmax, without truncation.
        top_k: Keep the k most likely tokens; 0 keeps all, and so does -1, which becomes 0.
        top_p: Keep the smallest set of most likely tokens with at least this probability mass.
        min_p: Drop tokens less likely than `min_p` times the most likely one.
        repetition_penalty: Logits of tokens already seen are divided by it when positive, else multiplied (CTRL,
            arXiv:1909.05858, section 4.1).
        presence_penalty, frequency_penalty: Subtracted from the logit of each token that the completion contains, once,
            and once per occurrence. The prompt does not count.
        seed: Makes the request's draws reproducible, alone or in any batch. None draws a fresh seed.
        max_tokens: Tokens to generate at most.
        min_tokens: Tokens to generate, at most `max_tokens`, before a token or stop string may end the completion.
        stop: Strings that end the completion; the text is cut before the string. One string is a list of one, None is
            an empty list. The text of a special token, "<|im_end|>" say, also stands for that token.
        stop_token_ids: Token ids that end the completion, besides the model's end-of-text ids.
        ignore_eos: Go on past the model's end-of-text ids (benchmarks).
        include_stop_str_in_output: Keep the matched stop string in the text.
        skip_special_tokens: Leave special tokens out of the text.
        logit_bias: Added to the logits of these tokens, {id: bias}; -100 practically forbids a token, 100 practically
            forces it. Kept as pairs (id, bias).
        logprobs: Report this many of the most likely tokens' log-probabilities at each position, besides the chosen
            token's; None reports none. In nats, of the model's distribution, before it is edited.
        prompt_logprobs: The same for each token of the prompt, once for all n completions. The prompt is then computed
            from its first token: it fills the prefix cache, but is not looked up there.
        structured_outputs: The form of the text; None: any. A completion that ends by 'stop' has the form; after
            'length' it may be incomplete. Stop strings and stop token ids are ignored until the text has the form.
    """

    n: int = option(1, whole_number(at_least=1))
    temperature: float | int = option(1.0, number("a finite number >= 0 (0 is greedy)", lambda x: x >= 0))
    top_k: int = option(0, _TOP_K)
    top_p: float | int = option(1.0, number("in (0, 1] (1 keeps every token)", lambda x: 0 < x <= 1))
    min_p: float | int = option(0.0, number("in [0, 1] (0 keeps every token)", lambda x: 0 <= x <= 1))
    repetition_penalty: float | int = option(1.0, _REPETITION_PENALTY)
    presence_penalty: float | int = option(0.0, _OUTPUT_PENALTY)
    frequency_penalty: float | int = option(0.0, _OUTPUT_PENALTY)
    seed: int | None = option(None, optional(whole_number(at_least=0, at_most=MAX_SEED)))
    max_tokens: int = option(16, whole_number(at_least=1))
    min_tokens: int = option(0, _COUNT)
    stop: str | Sequence[str] = option((), _STOPS)
    stop_token_ids: Sequence[int] = option((), _STOP_TOKEN_IDS)
    ignore_eos: bool = option(False, FLAG)
    include_stop_str_in_output: bool = option(False, FLAG)
    skip_special_tokens: bool = option(True, FLAG)
    logit_bias: Any = option((), _LOGIT_BIAS)  # Mapping[int, float], or the pairs of one
    logprobs: int | None = option(None, _LOGPROBS)
    prompt_logprobs: int | None = option(None, _LOGPROBS)
    structured_outputs: Any = None  # StructuredOutputs | None

    def __post_init__(self) -> None:
        apply_rules(self, RULES)
        if self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must not exceed max_tokens, got {self.min_tokens} > {self.max_tokens}; raise max_tokens, "
                f"or lower min_tokens."
            )
        if self.structured_outputs is not None:
            feature("structured_outputs.params").check_params(self)

    @property
    def penalises_output(self) -> bool:
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def truncates(self) -> bool:
        """Whether a draw leaves out unlikely tokens."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, without a draw."""
        return self.temperature == 0


RULES = rules_of(SamplingParams)


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it. A field that breaks its rule raises InvalidRequestError.

    Attributes:
        request_id: Unique among the engine's unfinished requests.
        prompt_token_ids: At least one token.
        arrival_s: Seconds on the engine's monotonic clock.
        eos_token_ids: The model's end-of-text ids.
        prompt: The prompt's text; None if token ids were given.
        priority: Lower runs first; ties go by arrival.
        cache_salt: Requests share prefix-cache blocks only with requests of the same salt.
        tenant: The request's owner, for `FairPolicy`.
        ttft_slo_s: Deadline of the first token, in seconds from arrival, for `DeadlinePolicy`; None: no deadline.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    arrival_s: int | float = option(0.0, number("a finite number of seconds"))
    eos_token_ids: frozenset[int] = frozenset()
    prompt: str | None = None
    priority: int = option(0, whole_number(note="(lower runs first)"))
    cache_salt: str = ""
    ttft_slo_s: int | float | None = option(None, optional(number("a finite number of seconds >= 0", lambda x: x >= 0)))
    tenant: str = ""

    def __post_init__(self) -> None:
        apply_rules(self, _REQUEST_RULES)


_REQUEST_RULES = {"request_id": TEXT} | rules_of(Request)


FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities in nats at one position: of the token there, and of the most likely tokens, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: 0 .. n-1.
        text: Detokenised output, cut before a stop string.
        token_ids: Every generated token, an end-of-text or stop token included.
        logprobs, cumulative_logprob: One entry per token, and their sum, if `SamplingParams.logprobs` was set.
        finish_reason: None while running; 'stop' (end-of-text, stop string or id), 'length', 'abort' or 'error'.
        stop_reason: The stop string or stop token id that ended the completion, if one did.
        error: The error's text, when `finish_reason` is 'error'.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    cumulative_logprob: float | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Times and counts of one request. A time is in seconds on the engine's monotonic clock; None: not reached.

    Attributes:
        token_times_s: When each token of completion 0 was sampled.
        num_cached_tokens: Prompt tokens whose K/V came from the prefix cache at the first admission.
        num_preemptions: Preemptions of the request's sequences.
    """

    arrival_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    finished_s: float | None
    token_times_s: tuple[float, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_preemptions: int

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from arrival."""
        return None if self.first_token_s is None else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None with fewer than two tokens."""
        times = self.token_times_s
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def latency_s(self) -> float | None:
        """End to end, from arrival to the last token."""
        return None if self.finished_s is None else self.finished_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A request's completions so far; `finished` when every one of them has a finish reason. `prompt_logprobs`, if they
    were asked for, have an entry per computed prompt token; the first is None, because that token has no context."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
