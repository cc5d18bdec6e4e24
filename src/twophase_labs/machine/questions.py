"""Questions with short answers: letters, or the arithmetic that gives a number."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twophase_labs.machine.checks import number, plain, reject, shown

Real = int | float
Step = tuple[str, Callable[[Any], None], str]  # a property: name, test of the learner's value, hint


@dataclass(frozen=True)
class Choice:
    """One letter out of several. `because` may say of each letter what its choice overlooks."""

    options: str
    right: str
    because: Mapping[str, str] = field(default_factory=dict)
    hint: str = "Read the section again with each option in mind."

    def properties(self) -> tuple[Step, ...]:
        def is_an_option(value: Any) -> None:
            value = plain(value)
            if type(value) is not str or value.strip().lower() not in list(self.options):
                reject(f"the answer is one letter of {', '.join(self.options)}; you gave {shown(value)}")

        def is_right(value: Any) -> None:
            letter = plain(value).strip().lower()
            if letter != self.right:
                reject(f"{letter!r} is not the answer" + _because(self.because.get(letter)))

        return (
            ("is one of the options", is_an_option, f'Write one letter in quotes, like "{self.options[0]}".'),
            ("is the right option", is_right, self.hint),
        )


@dataclass(frozen=True)
class Matching:
    """Every key gets one of the options: `{"softmax": "c", "mask": "a"}`."""

    options: str
    right: Mapping[str, str]
    hint: str = "Start with the pair you are surest of; each option's effect on shapes helps."

    def properties(self) -> tuple[Step, ...]:
        def has_every_key(value: Any) -> None:
            given = letters(value)
            if given is None or set(given) != set(self.right):
                reject(f"the answer is a dict with the keys {', '.join(self.right)}; you gave {shown(value)}")
            odd = {key: v for key, v in given.items() if type(v) is not str or v not in list(self.options)}
            if odd:
                reject(f"each value is one letter of {', '.join(self.options)}; you gave {shown(odd)}")

        def is_right(value: Any) -> None:
            given = letters(value) or {}
            wrong = [key for key, letter in self.right.items() if given[key] != letter]
            if wrong:
                right = len(self.right) - len(wrong)
                reject(f"{right} of {len(self.right)} pairs are right; look again at {wrong[0]!r}")

        return (
            ("answers for every key", has_every_key, "Keep the keys as they were given and write a letter for each."),
            ("matches each pair", is_right, self.hint),
        )


def finite_number(value: Any) -> Real | None:
    """A number within a float's range, or None."""
    value = number(value)
    return value if value is not None and abs(value) <= sys.float_info.max else None


def letters(value: Any) -> dict[Any, Any] | None:
    """A dict in plain values, its strings stripped and in lower case; None if it is none."""
    value = plain(value)
    if type(value) is not dict:
        return None
    pairs = [(plain(key), plain(v)) for key, v in value.items()]
    return {key: v.strip().lower() if type(v) is str else v for key, v in pairs}


@dataclass(frozen=True)
class Number:
    """A number, accepted within a relative or absolute tolerance, or (for a guess) within a factor.

    `expected` computes the answer when the check runs, by arithmetic or by a quick measurement on this machine.
    """

    expected: Callable[[], Real]
    rel: Real = 0.01
    abs: Real = 0
    factor: Real | None = None
    unit: str = ""
    hint: str = "Write the formula down first, then put the numbers in; check the units."

    def accepts(self, value: Real, expected: Real) -> bool:
        if self.factor is not None:
            return expected / self.factor <= value <= expected * self.factor
        return abs(value - expected) <= max(self.abs, self.rel * abs(expected))

    def tolerance(self) -> str:
        if self.factor is not None:
            return f"within a factor of {self.factor:g}"
        if self.rel == self.abs == 0:
            return "only the exact number"
        if self.abs:
            return f"within {self.abs:g}"
        return f"within {self.rel:.3g} of it" if self.rel >= 1 else f"within {100 * self.rel:.3g} %"

    def properties(self) -> tuple[Step, ...]:
        def is_a_number(value: Any) -> None:
            found = finite_number(value)
            if found is None:
                reject(f"the answer is one finite number{self.unit and ' in ' + self.unit}; you gave {shown(value)}")
            if self.factor is not None and found <= 0:
                reject(f"the answer is a number above 0; you gave {shown(value)}")
            if self.unit == "per cent" and 0 < found < 1:  # a prediction cannot be taken back
                reject(f"the answer is in per cent, {100 * found:g} for a share of {found:g}")

        def is_close(value: Any) -> None:
            value, expected = number(value), self.expected()
            assert value is not None
            if not self.accepts(value, expected):
                reject(
                    f"{value:g} {self.unit}".rstrip()
                    + f" is {self.miss(value, expected)}; {self.tolerance()} is accepted"
                )

        return (
            ("is a number", is_a_number, "Write a number, without quotes."),
            ("is close enough", is_close, self.hint),
        )

    @staticmethod
    def miss(value: Real, expected: Real) -> str:
        """Too low or too high, and by roughly how much: enough to find the slip, not enough to read off the answer."""
        ratio = _ratio(value, expected)
        if ratio is None:
            return _side(value, expected)
        step = max((s for s in (1.5, 3, 10, 100, 1000, 10**6) if ratio >= s), default=None)
        return f"{_side(value, expected)}, " + (
            "by less than half" if step is None else f"by a factor of more than {step:g}"
        )

    @staticmethod
    def distance(value: Real, expected: Real) -> str:
        """Too low or too high, and by how much: for a card that shows the answer as well."""
        ratio = _ratio(value, expected)
        by = f"{abs(value - expected):.3g}" if ratio is None or ratio < 1.5 else f"a factor of {ratio:.3g}"
        return f"{_side(value, expected)} by {by}"


Question = Choice | Matching | Number


def _side(value: Real, expected: Real) -> str:
    return "too low" if value < expected else "too high"


def _ratio(value: Real, expected: Real) -> Real | None:
    """Of the larger to the smaller, None where that says nothing: one of them is 0, or their signs differ."""
    if expected == 0 or value == 0 or (value < 0) != (expected < 0):
        return None
    return max(value / expected, expected / value)


def _because(text: str | None) -> str:
    return f": {text}" if text else ""
