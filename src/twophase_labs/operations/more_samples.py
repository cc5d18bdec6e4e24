"""SmolLM2 adds three numbers, at once or step by step: several completions for each sum, and ways to choose one."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from twophase import LLM, BeamSearchParams, SamplingParams
from twophase_labs.operations.canary_gate import wilson

NUM_SUMS, NUM_COMPLETIONS = 24, 8
TEMPERATURE = 0.7
SHOTS = ((2, 5, 1), (7, 8, 2), (4, 4, 6))
MAX_TOKENS = {"at once": 5, "in steps": 26}
EQUATION = re.compile(r"(\d+) \+ (\d+) = (\d+)")


@dataclass(frozen=True)
class Sum:
    """One task."""

    a: int
    b: int
    c: int

    @property
    def result(self) -> int:
        return self.a + self.b + self.c

    def __str__(self) -> str:
        return f"{self.a} + {self.b} + {self.c}"


@dataclass(frozen=True)
class Sample:
    """One completion.

    Attributes:
        value: The last number in it; None if there is none.
        score: The mean log-probability of its tokens, in nats.
    """

    text: str
    value: int | None
    num_tokens: int
    score: float


Chooser = Callable[[Sum, Sequence[Sample]], int | None]


def sums() -> tuple[Sum, ...]:
    """The tasks, no two alike."""
    draw = random.Random(1)
    found: list[Sum] = []
    while len(found) < NUM_SUMS:
        one = Sum(draw.randint(2, 9), draw.randint(2, 9), draw.randint(2, 9))
        if one not in found and (one.a, one.b, one.c) not in SHOTS:
            found.append(one)
    return tuple(found)


def prompt(one: Sum, way: str) -> str:
    """Three worked examples, and the task."""
    if way == "at once":
        return "".join(f"{a} + {b} + {c} = {a + b + c}\n" for a, b, c in SHOTS) + f"{one} ="
    shots = (f"{a} + {b} + {c}: {a} + {b} = {a + b}, {a + b} + {c} = {a + b + c}\n" for a, b, c in SHOTS)
    return "".join(shots) + f"{one}:"


@cache
def engine() -> LLM:
    return LLM(num_kv_blocks=1500, max_num_seqs=64)


@cache
def greedy(way: str) -> tuple[Sample, ...]:
    """The likeliest token each time, for every task."""
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS[way], stop="\n", logprobs=0)
    return tuple(each[0] for each in _asked(way, params))


@cache
def completions(way: str) -> tuple[tuple[Sample, ...], ...]:
    """`NUM_COMPLETIONS` drawn for every task, in one request each: they share the blocks of its prompt."""
    params = SamplingParams(
        n=NUM_COMPLETIONS, temperature=TEMPERATURE, seed=7, max_tokens=MAX_TOKENS[way], stop="\n", logprobs=0
    )
    return _asked(way, params)


def _asked(way: str, params: SamplingParams) -> tuple[tuple[Sample, ...], ...]:
    outputs = engine().generate([prompt(one, way) for one in sums()], params, use_tqdm=False)
    found = []
    for output in outputs:
        samples = []
        for each in output.outputs:
            scores = [token.logprob for token in each.logprobs or ()]
            samples.append(Sample(each.text, last_number(each.text), len(scores), sum(scores) / max(1, len(scores))))
        found.append(tuple(samples))
    return tuple(found)


@cache
def beams(way: str, width: int = 2) -> tuple[Sample, ...]:
    """The likeliest text that a search with `width` beams finds for every task; all beams' tokens are counted.

    A search has no stop strings; the token of a line's end stops it.
    """
    stops = _encoded("\n")
    params = BeamSearchParams(beam_width=width, max_tokens=MAX_TOKENS[way], stop_token_ids=stops)
    best = []
    for output in engine().beam_search([prompt(one, way) for one in sums()], params, use_tqdm=False):
        found, num_tokens = output.sequences[0], sum(len(each.tokens) for each in output.sequences)
        best.append(Sample(found.text, last_number(found.text), num_tokens, found.cum_logprob / len(found.tokens)))
    return tuple(best)


def last_number(text: str) -> int | None:
    found = re.findall(r"\d+", text)
    return int(found[-1]) if found else None


# -- verifiers --------------------------------------------------------------------------------------------------------


def adds_up(text: str) -> bool:
    """Whether there are equations in it and all of them hold. It does not know the task."""
    found = [tuple(map(int, match)) for match in EQUATION.findall(text)]
    return bool(found) and all(a + b == c for a, b, c in found)


def is_derived(one: Sum, text: str) -> bool:
    """Whether it adds the task's numbers in two steps that hold, and ends with their result."""
    found = [tuple(map(int, match)) for match in EQUATION.findall(text)]
    if len(found) != 2 or not adds_up(text):
        return False
    (a, b, ab), (left, c, result) = found
    return (a, b, left, c) == (one.a, one.b, ab, one.c) and last_number(text) == result


def first_accepted(accepts: Callable[[Sum, str], bool]) -> Chooser:
    """The answer of the first completion that a verifier accepts; None if there is none."""
    return lambda one, samples: next((s.value for s in samples if accepts(one, s.text)), None)


# -- accuracy ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """Of one way to choose among k completions: tasks with the right answer, and tokens spent on each task."""

    name: str
    k: int
    rate: float
    tokens: float
    num: int = NUM_SUMS

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, of so many tasks."""
        return wilson(round(self.rate * self.num), self.num)

    @property
    def line(self) -> str:
        low, high = self.interval
        return (
            f"{self.name:<34} {self.k:2} x {self.tokens / self.k:4.1f} tokens: {self.rate:4.0%} [{low:.0%}, {high:.0%}]"
        )


def of_one(name: str, samples: Sequence[Sample], k: int = 1) -> Accuracy:
    """Where there is one answer for each task."""
    num_right = sum(sample.value == one.result for one, sample in zip(sums(), samples, strict=True))
    return Accuracy(name, k, num_right / len(samples), sum(s.num_tokens for s in samples) / len(samples))


def accuracy(name: str, choose: Chooser, way: str, k: int, num_draws: int = 60) -> Accuracy:
    """Of k out of the completions, the mean over many choices of which k."""
    draw = random.Random(k)
    right = tokens = 0.0
    for one, samples in zip(sums(), completions(way), strict=True):
        for _ in range(num_draws):
            chosen = draw.sample(samples, k)
            right += choose(one, chosen) == one.result
            tokens += sum(sample.num_tokens for sample in chosen)
    num = num_draws * NUM_SUMS
    return Accuracy(name, k, right / num, tokens / num)


def any_right(way: str) -> Accuracy:
    """Of a choice that finds a right answer wherever one was drawn: pass@n, which no other can exceed."""
    num_tokens = sum(sample.num_tokens for samples in completions(way) for sample in samples)
    share = sum(map(bool, num_right(way))) / NUM_SUMS
    return Accuracy(f"pass@{NUM_COMPLETIONS}, {way}", NUM_COMPLETIONS, share, num_tokens / NUM_SUMS)


def num_right(way: str) -> list[int]:
    """Of each task's completions, how many are right."""
    return [
        sum(sample.value == one.result for sample in samples)
        for one, samples in zip(sums(), completions(way), strict=True)
    ]


def plurality_is_right(way: str) -> tuple[int, int]:
    """Tasks whose most frequent answer is right, and tasks that are answered rightly at least once."""
    first = later = 0
    for one, samples in zip(sums(), completions(way), strict=True):
        values = [sample.value for sample in samples if sample.value is not None]
        first += bool(values) and max(set(values), key=lambda v: (values.count(v), v == one.result)) == one.result
        later += one.result in values
    return first, later


# -- costs ------------------------------------------------------------------------------------------------------------


def tiers_of(number: int) -> list[tuple[Callable[[], tuple[Sample, int]], int, int]]:
    """Of one task: its greedy completion in steps, then those drawn, one after the other."""
    first = greedy("in steps")[number]
    drawn = iter(completions("in steps")[number])

    def again() -> tuple[Sample, int]:
        sample = next(drawn)
        return sample, sample.num_tokens

    most = MAX_TOKENS["in steps"]
    return [(lambda: (first, first.num_tokens), 1, most), (again, NUM_COMPLETIONS, most)]


def tokens_until_accepted(number: int, stops: bool) -> int:
    """Tokens of a task's completions in steps up to the first that `is_derived` accepts, all if it accepts none.

    Args:
        stops: Whether a completion ends at its first equation that does not hold.
    """
    one, spent = sums()[number], 0
    for sample in completions("in steps")[number]:
        wrong = next((m.end() for m in EQUATION.finditer(sample.text) if not adds_up(m[0])), None)
        spent += len(_encoded(sample.text[:wrong])) if stops and wrong else sample.num_tokens
        if is_derived(one, sample.text):
            break
    return spent


def _encoded(text: str) -> list[int]:
    tokenizer = engine().tokenizer
    assert tokenizer is not None
    return tokenizer.encode(text, add_special_tokens=False)


def step_times(nums: Sequence[int] = (1, 2, 4, 8), rounds: int = 2, num_tokens: int = 8) -> dict[int, float]:
    """Milliseconds of a decode step by the number of completions of one prompt; the least of some rounds, in turns."""
    best: dict[int, float] = {}
    for _ in range(rounds):
        for num in nums:
            params = SamplingParams(n=num, seed=1, max_tokens=num_tokens, ignore_eos=True)
            [output] = engine().generate([prompt(sums()[0], "in steps")], params, use_tqdm=False)
            times = output.metrics.token_times_s
            best[num] = min(best.get(num, float("inf")), 1000 * (times[-1] - times[0]) / (len(times) - 1))
    return best
