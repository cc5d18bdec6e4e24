"""Validation of a record's fields: a table of rules beside the record, applied when the record is made.

A rule has a text for error messages and a function that returns the normalised value (a NumPy scalar becomes a plain
number, a list a tuple) or raises. NumPy's and PyTorch's scalars and 0-d arrays count as numbers; bools and text do not.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from numbers import Real
from typing import Any, NamedTuple

from twophase.core.errors import ConfigError, InvalidRequestError

MAX_SHOWN = 80  # characters of a value in a message
_MOST_ITEMS = MAX_SHOWN // 3 + 2  # of a list: each takes three characters at least


class Rule(NamedTuple):
    """`words` completes "<name> must be ..."; `read` returns the normalised value, or raises."""

    words: str
    read: Callable[[Any], Any]


ErrorType = type[InvalidRequestError] | type[ConfigError]


def apply_rules(record: Any, rules: Mapping[str, Rule], error_type: ErrorType = InvalidRequestError) -> None:
    """Read the fields of a frozen record, each by its rule. Raises as `checked`."""
    for name, rule in rules.items():
        object.__setattr__(record, name, checked(name, getattr(record, name), rule, error_type))


def checked(name: str, value: Any, rule: Rule, error_type: ErrorType = InvalidRequestError) -> Any:
    """The normalised value.

    Raises:
        InvalidRequestError, or `error_type`: The value breaks the rule; names the field, the rule and the value.
    """
    try:
        return rule.read(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise error_type(f"{name} must be {rule.words}, got {shown(value)}.") from error


def shown(value: Any) -> str:
    """A value as a message shows it: on one line, shortened if long."""
    try:
        text = repr(_beginning(value))
    except Exception:
        return f"a {type(value).__name__}"  # an int of 10,000 digits, or an object that cannot be shown
    text = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _beginning(value: Any, depth: int = 3) -> Any:
    """The beginning of a text, a list or a mapping, short enough for a message."""
    if isinstance(value, str | bytes):
        return value[: MAX_SHOWN + 1]
    if type(value) not in (list, tuple, dict):
        return value
    if not depth:
        return ...
    if isinstance(value, dict):
        return {_beginning(key): _beginning(each, depth - 1) for key, each in islice(value.items(), _MOST_ITEMS)}
    return type(value)(_beginning(each, depth - 1) for each in value[:_MOST_ITEMS])


# -- rules


def limited(words: str, read: Callable[[Any], Any], holds: Callable[[Any], bool]) -> Rule:
    """A value for which `holds` is true once it is read."""

    def read_within(value: Any) -> Any:
        found = read(value)
        if not holds(found):
            raise ValueError
        return found

    return Rule(words, read_within)


def kept(words: str, holds: Callable[[Any], bool]) -> Rule:
    """A value that is kept as it is."""
    return limited(words, lambda value: value, holds)


def one_of(*names: str) -> Rule:
    return kept(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def whole_number(at_least: int | None = None, at_most: int | None = None, note: str = "") -> Rule:
    bounds = [f">= {at_least}"] * (at_least is not None) + [f"<= {at_most}"] * (at_most is not None)
    words = " ".join(filter(None, ["a whole number", " and ".join(bounds), note]))
    return limited(words, read_int, lambda n: (at_least is None or n >= at_least) and (at_most is None or n <= at_most))


def number(words: str, holds: Callable[[float], bool] = lambda x: True) -> Rule:
    """A finite number for which `holds` is true."""
    return limited(words, read_float, lambda x: math.isfinite(x) and holds(x))


def optional(rule: Rule) -> Rule:
    return Rule(f"{rule.words}, or None", lambda value: None if value is None else rule.read(value))


def several(rule: Rule, of_one: type | None = None, words: str = "", at_most: int | float = math.inf) -> Rule:
    """A tuple of values that each keep `rule`. None means (); a bare `of_one` means a one-element list."""

    def read(value: Any) -> tuple[Any, ...]:
        is_one = of_one is not None and isinstance(value, of_one)
        return tuple([value] if is_one else () if value is None else items_of(value))

    each = limited(words, read, lambda items: len(items) <= at_most)
    return Rule(words or f"a list, each of it {rule.words}", lambda value: tuple(map(rule.read, each.read(value))))


# -- reading


def items_of(value: Any) -> Iterable[Any]:
    """`value` as an iterable. Raises TypeError for text, mappings, sets and non-iterables."""
    if isinstance(value, str | bytes | Mapping | AbstractSet):
        raise TypeError
    return iter(value)


def read_ints(value: Any) -> list[int]:
    """A list of whole numbers, at the speed of C where they are Python's own."""
    items = list(items_of(value))
    return items if set(map(type, items)) <= {int} else [read_int(item) for item in items]


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
NON_EMPTY_TEXT = limited("non-empty text", read_text, bool)
FLAG = Rule("True or False", read_flag)
# Beyond 9e9 the system's own waits overflow.
DURATION = number("a finite number of seconds > 0, at most 1e9", lambda x: 0 < x <= 1e9)
