"""The engine with SmolLM2, kept for the whole notebook; policies take turns on it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from twophase import LLM
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase_tools.bench.serve import ServingRun, serve
from twophase_tools.load.workloads import TimedRequest

POOL_BLOCKS = 256
ANSWER_TOKENS, NUM_PROMPTS, PROMPT_TOKENS = 40, 5, 112
CHUNK = 32  # tokens of a step under the chunked policy of the lanes


@cache
def smollm2_engine() -> LLM:
    """Without a prefix cache: every run of the same prompts computes the same."""
    return LLM(num_kv_blocks=POOL_BLOCKS, enable_prefix_caching=False, max_trace_steps=None)


def run_on_engine(policy: Policy | None, requests: Iterable[TimedRequest]) -> ServingRun:
    """Play requests on the real engine, by the clock, under this policy (None: the default)."""
    llm = smollm2_engine()
    llm.scheduler.policy = policy or PriorityPolicy()
    try:
        return serve(llm.engine, requests, llm.model_config.vocab_size)
    finally:
        llm.scheduler.policy = PriorityPolicy()


@dataclass(frozen=True)
class Pace:
    """How fast this machine is: seconds of a prompt token in a long chunk, and of a decode alone."""

    prompt_token_s: float
    decode_s: float


_latest: list[Pace] = []


def pace(again: bool = False) -> Pace:
    """The last one measured, or one measured now."""
    if again or not _latest:
        _latest[:] = [_measured_pace()]
    return _latest[0]


def _measured_pace() -> Pace:
    """On the engine: a prompt of 112 tokens and seven decodes, the best of two after a warm-up."""
    probe = TimedRequest("probe", 0.0, PROMPT_TOKENS, 8)
    run_on_engine(None, [replace(probe, num_prompt_tokens=16)])
    records = [run_on_engine(None, [probe]).records[0] for _ in range(2)]
    ttft_s = min(record.token_times_s[0] - record.arrival_s for record in records)
    return Pace(ttft_s / PROMPT_TOKENS, min(gap_s for record in records for gap_s in record.itls_s))


def answer_and_prompts(here: Pace) -> list[TimedRequest]:
    """One request that writes, and five with long prompts that come, on any machine, faster than they can be read.

    The first comes when the answer has some tokens; then one comes each time that half a prompt could be read.
    """
    answer = TimedRequest("answer", 0.0, 16, ANSWER_TOKENS)
    first_s = 16 * here.prompt_token_s + 8 * here.decode_s
    gap_s = 0.5 * PROMPT_TOKENS * here.prompt_token_s
    prompts = [
        TimedRequest(f"prompt {number}", first_s + number * gap_s, PROMPT_TOKENS, 4) for number in range(NUM_PROMPTS)
    ]
    return [answer, *prompts]
