"""A service with several tenants, in two versions: one that is computed, for checks, and the real engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

from twophase import LLM, SamplingParams
from twophase.core.request import RequestMetrics

BLOCK = 16
DOCUMENT, QUESTION = 480, 16  # tokens
FIRST_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)

Ask = Callable[[Sequence[int]], float]  # a prompt in, seconds to its first token out


@dataclass
class PaperService:
    """A prefix cache and nothing else. A prompt takes `base_s`, and `token_s` for each token that must be computed.

    Attributes:
        slip: What multiplies the time of the nth request: noise. It is only ever slower, as on a real machine.
    """

    base_s: float = 0.02
    token_s: float = 0.001
    slip: Callable[[], float] = lambda: 1.0
    num_requests: int = 0
    _known: set[tuple[int, ...]] = field(default_factory=set)

    def __call__(self, token_ids: Sequence[int]) -> float:
        """Seconds to the first token; the full blocks of the prompt are known from now on."""
        prompt = tuple(token_ids)
        prefixes = [prompt[:end] for end in range(BLOCK, len(prompt) + 1, BLOCK)]
        num_hit = 0
        while num_hit < (len(prompt) - 1) // BLOCK and prefixes[num_hit] in self._known:
            num_hit += 1
        self._known.update(prefixes)
        self.num_requests += 1
        return (self.base_s + self.token_s * (len(prompt) - BLOCK * num_hit)) * self.slip()


@cache
def shared_engine() -> LLM:
    """SmolLM2 with a prefix cache, kept for the whole notebook."""
    return LLM(num_kv_blocks=512, max_trace_steps=None)


def first_token(llm: LLM, token_ids: Sequence[int], salt: str = "") -> RequestMetrics:
    """Serve one request for one token, alone; what was noted of it."""
    engine = llm.engine
    engine.add_request("ask", {"prompt_token_ids": list(token_ids)}, FIRST_TOKEN, cache_salt=salt)
    while True:
        for output in engine.step():
            if output.finished:
                return output.metrics


def forget_prefixes(llm: LLM) -> None:
    """Start with an empty prefix cache."""
    llm.scheduler.cache.reset_prefix_cache()


def prompt_of(first_id: int, num_tokens: int) -> list[int]:
    """Token ids that nobody else uses; what they say makes no difference to the time."""
    return list(range(first_id, first_id + num_tokens))
