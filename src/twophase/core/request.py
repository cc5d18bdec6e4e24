"""What a user asks for: immutable. `parse_prompt` has checked its prompt, salt and tenant; the rest is checked here."""

from dataclasses import dataclass

from twophase.core.rules import TEXT, apply_rules, number, optional, whole_number
from twophase.core.sampling_params import SamplingParams

RULES = {
    "request_id": TEXT,
    "arrival_s": number("a finite number of seconds"),
    "priority": whole_number(note="(lower runs first)"),
    "ttft_slo_s": optional(number("a finite number of seconds >= 0", lambda x: x >= 0)),
}


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it.

    Attributes:
        request_id: Unique among the engine's unfinished requests.
        prompt_token_ids: At least one token.
        sampling_params: How tokens are chosen and when to stop.
        arrival_s: Seconds on the engine's monotonic clock.
        eos_token_ids: The model's end-of-text ids.
        prompt: The text it came from, or None when token ids were given.
        priority: Lower runs first; ties go by arrival.
        cache_salt: Requests share prefix-cache blocks only with requests of the same salt.
        tenant: Whose it is, for policies that share the engine fairly. See `FairPolicy`.
        ttft_slo_s: Its first token is wanted that many seconds after arrival; None: no wish. See `DeadlinePolicy`.

    Raises:
        InvalidRequestError: A field breaks its rule. A policy ranks by these numbers: one that is NaN, or no number,
            could not be compared with the others, and the whole queue would suffer.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling_params: SamplingParams
    arrival_s: int | float = 0.0
    eos_token_ids: frozenset[int] = frozenset()
    prompt: str | None = None
    priority: int = 0
    cache_salt: str = ""
    ttft_slo_s: int | float | None = None
    tenant: str = ""

    def __post_init__(self) -> None:
        apply_rules(self, RULES)
