"""Validation of a record's fields: a rule for each, applied when the record is made.

NumPy's and PyTorch's scalars and 0-d arrays count as numbers and become plain numbers; bools and text do not.
"""

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from twophase.core.errors import InvalidRequestError, TwophaseError

MAX_SHOWN = 80  # characters of a value in a message
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = MAX_SHOWN // 3  # an item takes three characters at least
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = MAX_SHOWN


@dataclass(frozen=True, slots=True)
class Rule:
    """A field's rule: `words` completes "<name> must be ...", `convert` normalises a value or raises, and `holds` is
    true for a valid result."""

    words: str
    convert: Callable[[Any], Any] = lambda value: value
    holds: Callable[[Any], bool] = lambda value: True

    def read(self, value: Any) -> Any:
        """The normalised value: a NumPy scalar becomes a plain number. Raises ValueError, or as `convert`."""
        found = self.convert(value)
        if not self.holds(found):
            raise ValueError
        return found


def option(default: Any, rule: Rule) -> Any:
    """A field of a dataclass, with its rule."""
    return field(default=default, metadata={"rule": rule})


def rules_of(record_type: type) -> dict[str, Rule]:
    """The rules of the fields that have one."""
    return {each.name: each.metadata["rule"] for each in fields(record_type) if "rule" in each.metadata}


def apply_rules(record: Any, rules: Mapping[str, Rule], error_type: type[TwophaseError] = InvalidRequestError) -> None:
    """Read the fields of a frozen record, each by its rule. Raises as `checked`."""
    for name, rule in rules.items():
        object.__setattr__(record, name, checked(name, getattr(record, name), rule, error_type))


def checked(name: str, value: Any, rule: Rule, error_type: type[TwophaseError] = InvalidRequestError) -> Any:
    """The normalised value. Raises `error_type`, with the field, the rule and the value, if it breaks the rule."""
    try:
        return rule.read(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise error_type(f"{name} must be {rule.words}, got {shown(value)}.") from error


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, shortened if long."""
    try:
        text = _SHORT.repr(value)
    except Exception:
        return f"a {type(value).__name__}"  # an int of 10,000 digits, for example
    text = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def one_of(*names: str) -> Rule:
    return Rule(f"one of {', '.join(names)}", holds=lambda value: isinstance(value, str) and value in names)


def whole_number(at_least: int | None = None, at_most: int | None = None, note: str = "") -> Rule:
    bounds = [f">= {at_least}"] * (at_least is not None) + [f"<= {at_most}"] * (at_most is not None)
    words = " ".join(filter(None, ["a whole number", " and ".join(bounds), note]))
    return Rule(words, read_int, lambda n: (at_least is None or n >= at_least) and (at_most is None or n <= at_most))


def number(words: str, holds: Callable[[float], bool] = lambda x: True) -> Rule:
    """A finite number for which `holds` is true."""
    return Rule(words, read_float, lambda x: math.isfinite(x) and holds(x))


def optional(rule: Rule) -> Rule:
    return Rule(f"{rule.words}, or None", lambda value: None if value is None else rule.read(value))


def items_of(value: Any) -> Iterable[Any]:
    """`value` as an iterable. Raises TypeError for text, mappings, sets and non-iterables."""
    if isinstance(value, str | bytes | Mapping | AbstractSet):
        raise TypeError
    return iter(value)


def read_text(value: Any) -> str:
    """Text that UTF-8 can write, so no half of a surrogate pair."""
    if not isinstance(value, str):
        raise TypeError
    value.encode()
    return str(value)


def read_flag(value: Any) -> bool:
    return bool(_plain(value, is_flag=True))


def read_int(value: Any) -> int:
    return value if type(value) is int else operator.index(_plain(value))


def read_float(value: Any) -> float:
    found = _plain(value)
    if not isinstance(found, Real):
        raise TypeError
    return float(found)


def _plain(value: Any, is_flag: bool = False) -> Any:
    """The scalar of NumPy or PyTorch as Python's own. Raises TypeError for an array, and for a bool as a number."""
    if getattr(value, "ndim", 0) != 0:
        raise TypeError
    found = value.item() if hasattr(value, "item") else value
    if isinstance(found, bool) != is_flag:
        raise TypeError
    return found


TEXT = Rule("text (Unicode that UTF-8 can write: no half of a surrogate pair)", read_text)
NON_EMPTY_TEXT = Rule("non-empty text", read_text, bool)
FLAG = Rule("True or False", read_flag)
# Beyond 9e9 the system's own waits overflow.
DURATION = number("a finite number of seconds > 0, at most 1e9", lambda x: 0 < x <= 1e9)
