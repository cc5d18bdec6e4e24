"""What a value in the file may be. A kind turns a scalar into a value, or raises ValueError saying what it must be."""

import difflib
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from twophase_tools.capacity.units import bytes_of


class Scalar(NamedTuple):
    """A value as it stands in the file. YAML's own guesses ('yes' a flag, '12:30' a number) are not asked for."""

    text: str
    is_quoted: bool

    @property
    def shown(self) -> str:
        """Quotes and all: "16" in quotes is no number."""
        return f'"{self.text}"' if self.is_quoted else self.text


Kind = Callable[[Scalar], Any]

TINIEST = 1e-12
MOST = 10**9  # of anything counted: far beyond any use, and small enough for exact arithmetic in floats

_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9_]{0,18})")
_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9_]{0,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")


def text(scalar: Scalar) -> str:
    return scalar.text


def whole(least: int, most: int = MOST) -> Kind:
    """A whole number in [least, most]."""

    def parse(scalar: Scalar) -> int:
        rule = f"must be a whole number of at least {least:,}"
        if not _WHOLE.fullmatch(scalar.shown):
            raise ValueError(f"{rule}, got {scalar.shown}{_meant(scalar)}")
        value = int(scalar.text)
        if value < least:
            raise ValueError(f"{rule}, got {value:,}")
        if value > most:
            raise ValueError(f"must be at most {most:,}, got {value:,}")
        return value

    return parse


def _meant(scalar: Scalar) -> str:
    """'; write 1000' for 1e3, 1,000, 1000.0 and "1000"."""
    plain = scalar.text.replace(",", "")
    if _NUMBER.fullmatch(plain) and float(plain) == int(float(plain) if math.isfinite(float(plain)) else 0):
        return f"; write {int(float(plain))}"
    return ""


def power_of_two(scalar: Scalar) -> int:
    value: int = whole(1)(scalar)
    if value & (value - 1):
        below = 1 << (value.bit_length() - 1)
        raise ValueError(f"must be a power of two, because kernels tile pages so, got {value}; try {below}")
    return value


def number(above: int | float = 0, most: int | float = 1e21) -> Kind:
    """A number in (above, most], and none so small that a quotient of two leaves the range of floats."""
    return _number_between(f"must be a number above {above:g}", lambda value: value >= above + TINIEST, most)


def number_from(least: int | float, most: int | float = 1e21) -> Kind:
    """A number in [least, most]."""
    return _number_between(f"must be a number of at least {least:g}", lambda value: value >= least, most)


def share(scalar: Scalar) -> float:
    """A number in (0, 1]."""
    shown = scalar.shown
    if re.fullmatch(r"[0-9]{1,3}\s*%", shown):
        raise ValueError(f"must be a share in (0, 1], got {shown}; write {int(shown.rstrip('% ')) / 100:g}")
    value: float = number(0)(scalar)
    if value > 1:
        hint = f"; write {value / 100:g} for {value:g} %" if value <= 100 else ""
        raise ValueError(f"must be a share in (0, 1], got {shown}{hint}")
    return value


def _number_between(rule: str, is_fine: Callable[[float], bool], most: int | float) -> Kind:
    def parse(scalar: Scalar) -> float:
        if not _NUMBER.fullmatch(scalar.shown):
            raise ValueError(f"{rule}, got {scalar.shown}")
        value = float(scalar.text)
        if not is_fine(value):
            raise ValueError(f"{rule}, got {scalar.text}")
        if value > most:
            raise ValueError(f"must be at most {most:g}, got {scalar.text}")
        return value

    return parse


def size(scalar: Scalar) -> int:
    """Bytes."""
    return bytes_of(scalar.shown)


def choice(options: Iterable[str]) -> Kind:
    """One of these words."""
    names = tuple(options)

    def parse(scalar: Scalar) -> str:
        if scalar.text in names:
            return scalar.text
        raise ValueError(f"must be {one_of(names)}, got {scalar.shown}{did_you_mean(scalar.text, names)}")

    return parse


def flag(scalar: Scalar) -> bool:
    return bool(choice(("true", "false"))(scalar) == "true")


def one_of(names: Iterable[str]) -> str:
    listed = tuple(names)
    return listed[0] if len(listed) == 1 else f"one of {', '.join(listed)}"


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """'; did you mean ...?' where one of the names is like the word or begins with it, else nothing."""
    known, lower = tuple(names), word.lower()
    close = difflib.get_close_matches(lower, known, n=1) or [name for name in known if lower and name.startswith(lower)]
    return f"; did you mean {close[0]}?" if close else ""
