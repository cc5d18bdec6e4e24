"""Sums, scored mechanically, for `twophase bench quality`: quantised weights may keep the perplexity and lose a skill.

Small models are undecided about much, and a tie falls either way without loss. So only what was clear before can be
lost, where the right answer led the runner-up by a nat; it is lost when it is no longer right at all.
"""

import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from twophase.core.request import SamplingParams, TokenLogprobs
from twophase.llm import LLM

SHOTS = ((2, 5), (7, 8), (12, 7), (25, 31))  # sums that are given with their results
ONE_DIGIT = tuple((a, b) for a in range(2, 10) for b in range(2, 10) if a <= b and (a, b) not in SHOTS)
TWO_DIGITS = tuple((11 + 37 * i % 83, 12 + 29 * i % 79) for i in range(32))  # for models larger than SmolLM2-135M
MAX_SUM_TOKENS = 6
CLEAR = 1.0  # nats: e times as likely. Closer calls fall either way without loss, as K/V in 8 bits show on SmolLM2


class Outcome(NamedTuple):
    """Of one task.

    Attributes:
        lead: Nats between what was said and the runner-up: near 0 it might as well have been that.
        said: What must be said again, where no answer is right but the one from before.
    """

    passed: bool
    lead: float = math.inf
    said: Any = None

    @property
    def is_clear(self) -> bool:
        """Passed by so much that another outcome would be a loss, and not the other side of a tie."""
        return self.passed and self.lead >= CLEAR

    def is_kept(self, after: "Outcome") -> bool:
        return after.passed and after.said == self.said


def add_up(llm: LLM, sums: Sequence[tuple[int, int]]) -> tuple[Outcome, ...]:
    """Whether the model continues each sum with its result, after a few sums with theirs.

    Raises:
        InvalidRequestError: It has no tokenizer, or too short a context.
    """
    examples = "".join(f"{a} + {b} = {a + b}\n" for a, b in SHOTS)
    params = SamplingParams(temperature=0, max_tokens=MAX_SUM_TOKENS, stop="\n", logprobs=2)
    outputs = llm.generate([f"{examples}{a} + {b} =" for a, b in sums], params, use_tqdm=False)
    outcomes = []
    for (a, b), output in zip(sums, outputs, strict=True):
        completion = output.outputs[0]
        said = "" if completion.finish_reason == "error" else completion.text
        outcomes.append(Outcome(first_number(said) == a + b, _lead(completion.logprobs)))
    return tuple(outcomes)


def first_number(text: str) -> Fraction | None:
    """The number that `text` begins with: '12', '12.0' and ' 1,200.' are 12, 12 and 1200; '?' is none."""
    found = re.match(r"\s*(-?\d+(?:,\d{3})*(?:\.\d+)?)(?![\d,]*\d)", text)
    return None if found is None else Fraction(found[1].replace(",", ""))


def _lead(entries: Sequence[TokenLogprobs] | None) -> float:
    """By how many nats greedy tokens led the next likely ones, where it was closest; 0 where none was said."""
    return min((entry.top[0][1] - entry.top[1][1] for entry in entries or ()), default=0.0)
