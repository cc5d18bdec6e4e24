"""Workloads: who comes when, with how long a prompt, and how long an answer they get. Also by name.

A workload draws nothing until it is iterated, and keeps nothing: a million requests take no memory. Arrivals, prompt
lengths and output lengths have random streams of their own, so a workload at twice the rate has the same requests, and
one seed gives the same workload on every machine.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, replace
from functools import partial
from typing import Protocol, final, runtime_checkable

from twophase.core.errors import ConfigError
from twophase.core.rules import checked, number, option
from twophase_tools.checked import Checked
from twophase_tools.load.arrivals import Arrivals, AtOnce, Bursty, Poisson
from twophase_tools.load.lengths import COUNT, Lengths, LogNormalLengths, UniformLengths


@dataclass(frozen=True)
class TimedRequest(Checked):
    """One request of a workload.

    Attributes:
        arrival_s: Seconds from the workload's start.
        num_output_tokens: It generates exactly so many; end-of-text is ignored.
        prefix: Requests with the same text here share their first `num_prefix_tokens` tokens.
        prompt_token_ids: The prompt itself; None: random ids are drawn when they are needed (`token_ids_of`).

    Raises:
        ConfigError: A time or a count that no request can have.
    """

    request_id: str
    arrival_s: float | int = option(MISSING, number("a finite number of seconds >= 0", lambda x: x >= 0))
    num_prompt_tokens: int = option(MISSING, COUNT)
    num_output_tokens: int = option(MISSING, COUNT)
    prefix: str = ""
    num_prefix_tokens: int = 0
    prompt_token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.num_prefix_tokens <= self.num_prompt_tokens:
            raise ConfigError(
                f"a prefix of {self.num_prefix_tokens} tokens is no part of a prompt of {self.num_prompt_tokens}."
            )
        if self.prompt_token_ids is not None and len(self.prompt_token_ids) != self.num_prompt_tokens:
            raise ConfigError(
                f"num_prompt_tokens={self.num_prompt_tokens}, and {len(self.prompt_token_ids)} prompt_token_ids."
            )


def token_ids_of(request: TimedRequest, vocab_size: int, seed: int = 0) -> tuple[int, ...]:
    """The prompt: given, or random ids below `vocab_size` that depend on seed and request id alone.

    Raises:
        ConfigError: A given id is not below `vocab_size`.
    """
    if request.prompt_token_ids is not None:
        if max(request.prompt_token_ids) >= vocab_size:
            raise ConfigError(
                f"request {request.request_id!r} has token id {max(request.prompt_token_ids)}, and the model's "
                f"vocabulary ends at {vocab_size}; choose a workload that draws its ids, or a model that knows them."
            )
        return request.prompt_token_ids
    # Seeded with text: the same everywhere, and nothing like that of a neighbour (random.seed, version 2).
    shared = random.Random(f"{seed} prefix {request.prefix}").choices(range(vocab_size), k=request.num_prefix_tokens)
    num_own = request.num_prompt_tokens - request.num_prefix_tokens
    own = random.Random(f"{seed} request {request.request_id}").choices(range(vocab_size), k=num_own)
    return (*shared, *own)


@runtime_checkable
class Workload(Protocol):
    """Requests in order of arrival; each iteration starts anew and gives the same.

    Attributes:
        pool_share: Blocks that the pool should have, as a share of those that hold every request to its end at once;
            None: whatever the engine has.
    """

    @property
    def name(self) -> str: ...

    @property
    def pool_share(self) -> float | int | None: ...

    def __iter__(self) -> Iterator[TimedRequest]: ...


@final
@dataclass(frozen=True)
class SharedPrefix(Checked):
    """`num_groups` system prompts of `num_tokens` tokens; each request's prompt begins with one of them."""

    num_groups: int = option(MISSING, COUNT)
    num_tokens: int = option(MISSING, COUNT)


@final
@dataclass(frozen=True)
class RandomWorkload:
    """`num_requests` requests drawn from distributions.

    Attributes:
        prompt_lens: Of a request's own tokens; a shared prefix comes on top.
    """

    name: str
    num_requests: int
    arrivals: Arrivals
    prompt_lens: Lengths
    output_lens: Lengths
    prefix: SharedPrefix | None = None
    seed: int = 0
    pool_share: float | int | None = None

    def __post_init__(self) -> None:
        checked("num_requests", self.num_requests, COUNT, ConfigError)

    def __iter__(self) -> Iterator[TimedRequest]:
        streams = ("arrivals", "prompts", "outputs", "prefixes")
        arrivals, prompts, outputs, prefixes = (random.Random(f"{self.seed} {stream}") for stream in streams)
        times_s = self.arrivals.times_s(arrivals)
        num_shared = self.prefix.num_tokens if self.prefix else 0
        for index in range(self.num_requests):
            yield TimedRequest(
                request_id=str(index),
                arrival_s=next(times_s),
                num_prompt_tokens=num_shared + self.prompt_lens.draw(prompts),
                num_output_tokens=self.output_lens.draw(outputs),
                prefix=str(prefixes.randrange(self.prefix.num_groups)) if self.prefix else "",
                num_prefix_tokens=num_shared,
            )


@final
@dataclass(frozen=True, slots=True)
class FixedWorkload:
    """Requests that are all there, such as the common benchmark."""

    name: str
    requests: tuple[TimedRequest, ...]
    pool_share: float | int | None = None

    def __iter__(self) -> Iterator[TimedRequest]:
        return iter(self.requests)


BENCHMARK_REQUESTS = 256
BENCHMARK_LENGTHS = (100, 1024)
BENCHMARK_VOCAB_SIZE = 10_000  # ids 0 .. 10000, both included


def benchmark_requests(seed: int = 0) -> list[TimedRequest]:
    """The workload that nano-vllm's bench.py and its copies use: 256 prompts and outputs of U(100, 1024) tokens.

    One random stream gives each prompt's length and then its ids, prompt after prompt, and then all output lengths;
    with seed 0 that is 142,827 prompt and 133,966 output tokens. All arrive at once.
    """
    rng = random.Random(seed)
    prompts = [
        tuple(rng.randint(0, BENCHMARK_VOCAB_SIZE) for _ in range(rng.randint(*BENCHMARK_LENGTHS)))
        for _ in range(BENCHMARK_REQUESTS)
    ]
    return [
        TimedRequest(f"{seed}-{number}", 0.0, len(prompt), rng.randint(*BENCHMARK_LENGTHS), prompt_token_ids=prompt)
        for number, prompt in enumerate(prompts)
    ]


def num_pool_blocks(workload: Workload, block_size: int) -> int | None:
    """Blocks of the pool that a workload asks for by its `pool_share`, and no fewer than its largest request needs.

    With all the blocks that this is a share of, every request could run to its end at once, nothing shared.
    """
    if workload.pool_share is None:
        return None
    needs = [-(-(request.num_prompt_tokens + request.num_output_tokens) // block_size) for request in workload]
    return max(math.ceil(workload.pool_share * sum(needs)), max(needs))


@dataclass(frozen=True, slots=True)
class Load:
    """How much of a named workload is played; None: as the workload is by itself.

    Attributes:
        cv: Coefficient of variation of the gaps between arrivals; 1 is Poisson.
    """

    num_requests: int | None = None
    rate_per_s: float | int | None = None
    cv: float | int | None = None
    seed: int = 0

    def arrivals(self, rate_per_s: float | int, cv: float | int = 1) -> Arrivals:
        """Random arrivals; the arguments are the workload's own rate and variation."""
        rate_per_s = rate_per_s if self.rate_per_s is None else self.rate_per_s
        cv = cv if self.cv is None else self.cv
        return Poisson(rate_per_s) if cv == 1 else Bursty(rate_per_s, cv)


def named_workload(name: str, load: Load | None = None) -> Workload:
    """One of `WORKLOADS`.

    Raises:
        ConfigError: No workload of this name, or a load that it cannot have.
    """
    if name not in WORKLOADS:
        raise ConfigError(f"no workload is called {name!r}; there are {', '.join(WORKLOADS)}.")
    return WORKLOADS[name](name, load or Load())


CHAT_PROMPTS = LogNormalLengths(median=96, sigma=0.9, low=8, high=1024)
CHAT_OUTPUTS = LogNormalLengths(median=48, sigma=0.7, low=4, high=256)
PRESSURE = 0.25


def _chat(
    name: str,
    load: Load,
    num_requests: int = 32,
    rate_per_s: float | int = 1.0,
    cv: float | int = 1,
    prompt_lens: Lengths = CHAT_PROMPTS,
    output_lens: Lengths = CHAT_OUTPUTS,
    prefix: SharedPrefix | None = None,
) -> Workload:
    """Lognormal lengths at a steady rate, by itself; the arguments make it another workload."""
    num_requests = num_requests if load.num_requests is None else load.num_requests
    arrivals = load.arrivals(rate_per_s, cv)
    return RandomWorkload(name, num_requests, arrivals, prompt_lens, output_lens, prefix, load.seed)


def _benchmark(name: str, load: Load) -> Workload:
    requests = benchmark_requests(load.seed)
    num_requests = len(requests) if load.num_requests is None else load.num_requests
    if not 1 <= num_requests <= len(requests):
        raise ConfigError(f"{name!r} has {len(requests)} requests, so choose 1 to {len(requests)}, got {num_requests}.")
    if load.rate_per_s is None and load.cv is not None:
        raise ConfigError(f"{name!r} arrives all at once, so cv={load.cv!r} needs a rate too.")
    arrivals = AtOnce() if load.rate_per_s is None else load.arrivals(load.rate_per_s)
    times_s = arrivals.times_s(random.Random(f"{load.seed} arrivals"))
    timed = (
        replace(request, arrival_s=time_s) for request, time_s in zip(requests[:num_requests], times_s, strict=False)
    )
    return FixedWorkload(name, tuple(timed), PRESSURE if name == "benchmark-pressure" else None)


WORKLOADS: dict[str, Callable[[str, Load], Workload]] = {
    "chat": _chat,
    "bursty": partial(_chat, cv=3.0),
    "uniform": partial(_chat, prompt_lens=UniformLengths(16, 512), output_lens=UniformLengths(16, 128)),
    "shared-prefix": partial(_chat, prefix=SharedPrefix(num_groups=2, num_tokens=256)),
    # A few short requests: shows that everything runs, measures nothing.
    "quick": partial(
        _chat, num_requests=6, rate_per_s=8.0, prompt_lens=UniformLengths(4, 48), output_lens=UniformLengths(2, 8)
    ),
    # The common benchmark, and the same with a quarter of the blocks.
    "benchmark": _benchmark,
    "benchmark-pressure": _benchmark,
}
