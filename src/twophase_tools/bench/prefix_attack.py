"""The timing side channel of a prefix cache, and what closes it: a salt per tenant.

A victim's prompt is a text that everybody knows and a secret, one of `num_candidates`. A stranger with a place in the
same engine asks for the known text with each candidate behind it and names the one whose first token came soonest: its
blocks were in the cache, so they were not computed (Gu et al., Auditing Prompt Caching in Language Model APIs,
arXiv:2502.07776). Prefixes are shared only under one `cache_salt`; with a salt of their own, strangers find nothing.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from twophase.core.errors import ConfigError
from twophase.core.request import SamplingParams
from twophase.llm import LLM

Clock = Callable[[], int | float]

FIRST_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Probe:
    """One request for one token, alone in the engine, as its sender sees it.

    Attributes:
        ttft_s: From the call to the first token.
        num_cached_tokens: Prompt tokens that were found in the prefix cache.
    """

    ttft_s: int | float
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One secret, and what the stranger's clock said of each candidate.

    Attributes:
        is_found: Whether the soonest candidate was the secret.
        hit, misses: The probe of the secret, and those of the others.
    """

    is_found: bool
    hit: Probe
    misses: tuple[Probe, ...]


@dataclass(frozen=True, slots=True)
class AttackShape:
    """Tokens and numbers of one attack.

    Attributes:
        known_len, secret_len: Tokens of the text that everybody knows, and of each candidate; whole blocks, so that
            nothing but the secret differs between a hit and a miss.
    """

    known_len: int = 64
    secret_len: int = 32
    num_candidates: int = 8
    num_trials: int = 16


@dataclass(frozen=True, slots=True)
class AttackResult:
    """All trials of one kind.

    Attributes:
        has_salts: Whether victim and stranger had a salt of their own.
        success_rate, chance: Share of the secrets found; what guessing finds.
        luck: Probability that guessing finds as many, or more.
        hit_s, miss_s: Median TTFT of the secret's probe, and of the others'.
        num_cached_hit, num_cached_miss: Median tokens that these probes found in the cache.
    """

    has_salts: bool
    num_trials: int
    num_found: int
    success_rate: float
    chance: float
    luck: float
    hit_s: int | float
    miss_s: int | float
    num_cached_hit: int | float
    num_cached_miss: int | float

    def to_line(self) -> str:
        who = "a salt per tenant" if self.has_salts else "one cache for all"
        return (
            f"  {who:<18} {self.num_found} of {self.num_trials} secrets found ({self.success_rate:.0%}; guessing: "
            f"{self.chance:.1%}, as many by luck: {self.luck:.1g}); TTFT of the secret {self.hit_s * 1e3:.1f} ms, "
            f"of others {self.miss_s * 1e3:.1f} ms ({self.hit_s / self.miss_s:.2f}x)"
        )


def first_token(llm: LLM, token_ids: Sequence[int], salt: str = "", clock: Clock = time.perf_counter) -> Probe:
    """Ask for the first token after a prompt; its full blocks are in the prefix cache from then on."""
    start_s = clock()
    (output,) = llm.generate({"prompt_token_ids": list(token_ids), "cache_salt": salt}, FIRST_TOKEN, use_tqdm=False)
    return Probe(clock() - start_s, output.metrics.num_cached_tokens)


def random_ids(llm: LLM, rng: random.Random, num_tokens: int) -> list[int]:
    """A text that nobody has asked for yet; what it says makes no difference to the time."""
    return [rng.randrange(llm.model_config.vocab_size) for _ in range(num_tokens)]


def attack(llm: LLM, shape: AttackShape, rng: random.Random, *, has_salts: bool, clock: Clock) -> Trial:
    """Serve a victim with a fresh secret, then let a stranger look for it. Empties the prefix cache first."""
    llm.scheduler.cache.reset_prefix_cache()
    victim, stranger = ("victim", "stranger") if has_salts else ("", "")
    known = random_ids(llm, rng, shape.known_len)
    candidates = [random_ids(llm, rng, shape.secret_len) for _ in range(shape.num_candidates)]
    secret = rng.randrange(shape.num_candidates)
    # Behind the secret each has something of its own: a prompt's last token is never taken from the cache.
    first_token(llm, [*known, *candidates[secret], *random_ids(llm, rng, 1)], victim)
    # With a salt of their own strangers find not even the known text. So the first candidate would be the slowest.
    first_token(llm, known, stranger)
    end = random_ids(llm, rng, 1)
    # Once each: by asking for a candidate the stranger makes it known.
    probes = [first_token(llm, [*known, *candidate, *end], stranger, clock) for candidate in candidates]
    named = min(range(shape.num_candidates), key=lambda index: probes[index].ttft_s)
    misses = tuple(probe for index, probe in enumerate(probes) if index != secret)
    return Trial(named == secret, probes[secret], misses)


def run_attacks(
    llm: LLM, shape: AttackShape, rng: random.Random, clock: Clock = time.perf_counter
) -> tuple[AttackResult, AttackResult]:
    """All trials without salts and with them, in turns.

    Raises:
        ConfigError: Lengths that are not whole blocks, fewer than 2 candidates, or no trial.
    """
    block_size = llm.scheduler.cache.block_size
    if shape.secret_len < block_size or shape.secret_len % block_size or shape.known_len % block_size:
        raise ConfigError(
            f"known_len and secret_len must be whole blocks of {block_size} tokens, and the secret at least one, got "
            f"{shape.known_len} and {shape.secret_len}: a part of a block is never found in a prefix cache."
        )
    if shape.num_candidates < 2 or shape.num_trials < 1:
        raise ConfigError(
            f"an attack needs at least 2 candidates and 1 trial, got {shape.num_candidates} and {shape.num_trials}."
        )
    trials: tuple[list[Trial], list[Trial]] = ([], [])
    for _ in range(shape.num_trials):
        for has_salts, of_kind in zip((False, True), trials, strict=True):
            of_kind.append(attack(llm, shape, rng, has_salts=has_salts, clock=clock))
    return summarise(trials[0], has_salts=False), summarise(trials[1], has_salts=True)


def summarise(trials: Sequence[Trial], *, has_salts: bool) -> AttackResult:
    """Rates and medians over trials of as many candidates each."""
    misses = [miss for trial in trials for miss in trial.misses]
    num_found = sum(trial.is_found for trial in trials)
    chance = 1 / (1 + len(trials[0].misses))
    return AttackResult(
        has_salts=has_salts,
        num_trials=len(trials),
        num_found=num_found,
        success_rate=num_found / len(trials),
        chance=chance,
        luck=probability_of_at_least(num_found, len(trials), chance),
        hit_s=statistics.median(trial.hit.ttft_s for trial in trials),
        miss_s=statistics.median(miss.ttft_s for miss in misses),
        num_cached_hit=statistics.median(trial.hit.num_cached_tokens for trial in trials),
        num_cached_miss=statistics.median(miss.num_cached_tokens for miss in misses),
    )


def probability_of_at_least(num_successes: int, num_trials: int, chance: float) -> float:
    """The binomial distribution's upper tail, `num_successes` included."""
    outcomes = range(num_successes, num_trials + 1)
    return sum(math.comb(num_trials, k) * chance**k * (1 - chance) ** (num_trials - k) for k in outcomes)
