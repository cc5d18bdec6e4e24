"""More samples for a better answer: choose one of a request's completions, or let them vote.

The input is an engine's output for `SamplingParams(n=...)`: the completions share the prompt's blocks, so a further
sample costs its own tokens and no second prefill.

    output = llm.generate(prompt, SamplingParams(n=8, temperature=0.8, logprobs=0))[0]
    best_of(output, mean_logprob).text
    vote(output, key=extract_answer).winner
    first_accepted(llm, prompt, verifier, max_samples=64).accepted

`pass_at_k` and `wilson_interval` estimate the gain of further samples.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from twophase.core.errors import InvalidRequestError
from twophase.core.request import MAX_SEED, CompletionOutput, RequestOutput, SamplingParams
from twophase.core.rules import apply_rules, checked, optional, whole_number
from twophase.engine.request_state import Prompt

Scorer = Callable[[CompletionOutput], float]
# Judges a prompt and a completion: a score, or whether the completion is accepted.
Verifier = Callable[[Prompt, CompletionOutput], float | bool]


def sum_logprob(completion: CompletionOutput) -> float:
    """The completion's log-probability, in nats: its likelihood under the model. Short completions are likelier.

    Raises:
        InvalidRequestError: The request did not ask for log-probabilities.
    """
    if completion.cumulative_logprob is not None:
        return completion.cumulative_logprob
    if completion.token_ids:
        raise InvalidRequestError("a score by log-probability needs SamplingParams(logprobs=0) or more; it was None.")
    return 0.0


def mean_logprob(completion: CompletionOutput) -> float:
    """Log-probability per token; 0 for an empty completion."""
    return sum_logprob(completion) / max(1, len(completion.token_ids))


def best_of(output: RequestOutput, scorer: Scorer) -> CompletionOutput:
    """The completion with the highest score, the first of equals. Failed completions count only if all failed."""
    usable = [each for each in output.outputs if each.error is None] or list(output.outputs)
    return max(usable, key=scorer)


# -- self-consistency (Wang et al., arXiv:2203.11171): the most frequent answer, over all ways of reasoning


@dataclass(frozen=True, slots=True)
class Vote:
    """The result of a vote among completions.

    Attributes:
        winner: The answer with the most weight; None if no completion has one.
        weights: Weight of each answer, the winner's first; without a verifier a completion weighs 1.
        share: The winner's share of all votes' weight; 0 without a winner.
        completion: The first completion with the winning answer.
    """

    winner: Hashable | None
    weights: tuple[tuple[Hashable, float], ...]
    share: float
    completion: CompletionOutput | None


def vote(
    output: RequestOutput,
    key: Callable[[str], Hashable | None],
    weight: Scorer | None = None,
) -> Vote:
    """Let the completions of one request vote by their answers.

    A tie goes to the answer with the likeliest completion (by `sum_logprob`), if log-probabilities are known; else to
    the first answer.

    Args:
        key: The answer in a text, or None; a completion without an answer, or a failed one, does not vote.
        weight: The weight of a vote, at least 0: a verifier's score, say. None: 1 each.

    Raises:
        ValueError: A weight is negative or not finite.
    """
    supporters: dict[Hashable, list[CompletionOutput]] = defaultdict(list)
    weights: dict[Hashable, float] = defaultdict(float)
    for completion in output.outputs:
        answer = key(completion.text) if completion.error is None else None
        if answer is not None:
            supporters[answer].append(completion)
            weights[answer] += _checked_weight(1.0 if weight is None else weight(completion))
    if not weights:
        return Vote(None, (), 0.0, None)
    order = sorted(weights, key=lambda answer: (-weights[answer], -_likeliest(supporters[answer])))
    winner, total = order[0], sum(weights.values())
    share = weights[winner] / total if total else 0.0
    return Vote(winner, tuple((answer, weights[answer]) for answer in order), share, supporters[winner][0])


def _checked_weight(weight: float) -> float:
    if not 0 <= weight < math.inf:
        raise ValueError(f"a vote's weight must be finite and at least 0, got {weight}.")
    return float(weight)


def _likeliest(completions: Iterable[CompletionOutput]) -> float:
    known = [each.cumulative_logprob for each in completions if each.cumulative_logprob is not None]
    return max(known, default=0.0)


# -- sampling until a verifier accepts an answer


@runtime_checkable
class Generates(Protocol):
    """The part of `LLM` that is needed here."""

    def generate(
        self, prompts: Prompt, sampling_params: SamplingParams, use_tqdm: bool = True
    ) -> Sequence[RequestOutput]: ...


@dataclass(frozen=True, slots=True)
class Search:
    """The result of sampling until a verifier accepts.

    Attributes:
        accepted: The accepted completion; None if the budget ran out first.
        num_samples, num_tokens: Drawn completions and tokens, the whole last round included.
    """

    accepted: CompletionOutput | None
    num_samples: int
    num_tokens: int


_BUDGET_RULES = {
    "max_samples": whole_number(at_least=1),
    "max_tokens": optional(whole_number(at_least=1)),
    "round_size": whole_number(at_least=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The budget of `first_accepted`.

    Attributes:
        max_samples: Maximum number of completions.
        max_tokens: Drawn tokens from which on no further round begins; None: no limit.
        round_size: Completions drawn together, sharing the prompt's blocks.

    Raises:
        InvalidRequestError: A field breaks its rule.
    """

    max_samples: int = 16
    max_tokens: int | None = None
    round_size: int = 4

    def __post_init__(self) -> None:
        apply_rules(self, _BUDGET_RULES)


def first_accepted(
    llm: Generates,
    prompt: Prompt,
    verifier: Verifier,
    params: SamplingParams | None = None,
    budget: Budget | None = None,
    *,
    threshold: float = 0.5,
) -> Search:
    """Draw completions in rounds until a verifier accepts one, or the budget is spent.

    Args:
        verifier: True or a score above `threshold` accepts. Called once per completion, in order, until it accepts;
            failed completions are skipped.
        params: Sampling parameters; n comes from the budget. With a seed, each round uses the next seed.

    Raises:
        InvalidRequestError: As `LLM.generate`; nothing was drawn.
    """
    params, budget = params or SamplingParams(), budget or Budget()
    num_samples = num_tokens = num_rounds = 0
    while num_samples < budget.max_samples and (budget.max_tokens is None or num_tokens < budget.max_tokens):
        n = min(budget.round_size, budget.max_samples - num_samples)
        seed = None if params.seed is None else (params.seed + num_rounds) % (MAX_SEED + 1)
        (output,) = llm.generate(prompt, replace(params, n=n, seed=seed), use_tqdm=False)
        num_rounds, num_samples = num_rounds + 1, num_samples + n
        num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        for completion in output.outputs:
            if completion.error is None and verifier(prompt, completion) > threshold:
                return Search(completion, num_samples, num_tokens)
    return Search(None, num_samples, num_tokens)


# -- how good is it?


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that at least one of k samples is right, estimated without bias from `num_samples` of which
    `num_correct` were: 1 - C(n - c, k) / C(n, k) (Chen et al., arXiv:2107.03374, equation 1).

    Worked example: of 4 samples 1 was right; 2 of them have it in 3 of 6 choices: 0.5.

    Raises:
        InvalidRequestError: Not 0 <= num_correct <= num_samples, or not 1 <= k <= num_samples.
    """
    num_samples = checked("num_samples", num_samples, whole_number(at_least=1))
    num_correct = checked("num_correct", num_correct, whole_number(at_least=0, at_most=num_samples))
    k = checked("k", k, whole_number(at_least=1, at_most=num_samples))
    return 1 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def wilson_interval(num_correct: int, num_trials: int, z: float = 1.96) -> tuple[float, float]:
    """A confidence interval for a success rate from independent trials: Wilson's score interval (JASA 22, 1927, p.
    209). Unlike p +- z sqrt(p (1 - p) / n) it stays in [0, 1] and has a width at 0 and 1 too.

    Worked example: 8 of 10 is 0.8, and lies in (0.49, 0.94).

    Args:
        z: Quantile of the normal distribution; 1.96 for 95%.

    Raises:
        InvalidRequestError: Not 0 <= num_correct <= num_trials, or zero trials.
    """
    num_trials = checked("num_trials", num_trials, whole_number(at_least=1))
    num_correct = checked("num_correct", num_correct, whole_number(at_least=0, at_most=num_trials))
    rate, spread = num_correct / num_trials, z * z / num_trials
    middle = (rate + spread / 2) / (1 + spread)
    half = math.sqrt(rate * (1 - rate) * spread + spread * spread / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
