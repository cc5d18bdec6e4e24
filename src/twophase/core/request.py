"""A user's request, immutable. Prompt, salt and tenant are checked by `parse_prompt`, the rest here."""

from dataclasses import dataclass

from twophase.core.rules import TEXT, apply_rules, number, optional, whole_number

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
        tenant: Its owner, for policies that share the engine fairly. See `FairPolicy`.
        ttft_slo_s: Seconds from arrival by which its first token is wanted; None: no deadline. See `DeadlinePolicy`.

    Raises:
        InvalidRequestError: A field breaks its rule. A policy compares these numbers, so that a NaN would put the
            whole queue out of order.
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
