"""More samples for a better answer: draw until a verifier accepts one, and estimate what further samples gain.

    first_accepted(llm, prompt, verifier, SamplingParams(temperature=0.8), max_samples=64).accepted

The samples of a round share the prompt's blocks, so a further sample costs its own tokens and no second prefill.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from twophase.core.request import MAX_SEED, CompletionOutput, RequestOutput, SamplingParams
from twophase.core.rules import checked, whole_number
from twophase.engine.request_state import Prompt

Verifier = Callable[[Prompt, CompletionOutput], bool]


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


def first_accepted(
    llm: Generates,
    prompt: Prompt,
    verifier: Verifier,
    params: SamplingParams,
    *,
    max_samples: int = 16,
    max_tokens: float | int = math.inf,
    round_size: int = 4,
) -> Search:
    """Draw completions in rounds until a verifier accepts one, or the budget is spent.

    Args:
        verifier: Called once per completion, in order, until it accepts; failed completions are skipped.
        params: Sampling parameters; each round sets n, and uses the next seed if there is one.
        max_samples: Maximum number of completions.
        max_tokens: Drawn tokens from which on no further round begins.
        round_size: Completions drawn together, sharing the prompt's blocks.

    Raises:
        InvalidRequestError: As `LLM.generate`; nothing was drawn.
    """
    num_samples = num_tokens = num_rounds = 0
    while num_samples < max_samples and num_tokens < max_tokens:
        n = min(round_size, max_samples - num_samples)
        seed = None if params.seed is None else (params.seed + num_rounds) % (MAX_SEED + 1)
        (output,) = llm.generate(prompt, replace(params, n=n, seed=seed), use_tqdm=False)
        num_rounds, num_samples = num_rounds + 1, num_samples + n
        num_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        for completion in output.outputs:
            if completion.error is None and verifier(prompt, completion):
                return Search(completion, num_samples, num_tokens)
    return Search(None, num_samples, num_tokens)


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
