"""The fields of a JSON object, each read by its rule. No field is ignored: unknown fields are refused by name."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import Rule, checked, items_of, read_flag, read_int, read_text, shown
from twophase_server.errors import invalid

FLAG = Rule("true or false", read_flag)
OBJECT = Rule("a JSON object", holds=lambda value: isinstance(value, dict))
MAX_NAME = 512  # characters of a model's, a user's, a format's name
NAME = Rule(f"text of at most {MAX_NAME} characters", read_text, lambda name: len(name) <= MAX_NAME)


def read_ints(value: Any) -> list[int]:
    """A list of whole numbers, at the speed of C where they are Python's own."""
    items = list(items_of(value))
    return items if set(map(type, items)) <= {int} else [read_int(item) for item in items]


class Unsupported(NamedTuple):
    """A field of OpenAI's or vLLM's API that this server lacks. A `neutral` value is accepted: it changes nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


def read_fields(
    given: Any,
    rules: Mapping[str, Rule],
    unsupported: Mapping[str, Unsupported] | None = None,
    path: str = "",
    required: Iterable[str] = (),
) -> dict[str, Any]:
    """The normalised values. A null field counts as left out.

    Args:
        given: The object.
        path: Where the object is, for messages: 'stream_options', say.
        required: Fields that may not be left out.

    Raises:
        ApiError: 400, with the field, its value and the rule that it breaks.
    """
    within, unsupported, found = f"{path}." if path else "", unsupported or {}, {}
    for name, value in read_field(path, given, OBJECT).items():
        field = within + name
        if name in rules:
            if value is not None:
                found[name] = read_field(field, value, rules[name])
        elif name in unsupported:
            why, neutral = unsupported[name]
            if value is not None and value not in neutral:
                raise invalid(f"{field} is not supported: {why}. Got {shown(value)}.", field, "unsupported_parameter")
        else:
            near = difflib.get_close_matches(name, rules, n=1) if len(name) <= MAX_NAME else []
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise invalid(f"unknown field {shown(field)}.{hint}", field, "unknown_parameter")
    for name in required:
        if name not in found:
            raise invalid(f"{within}{name} is missing.", within + name)
    return found


def read_field(path: str, value: Any, rule: Rule) -> Any:
    """Raises ApiError (400) if the value breaks the rule."""
    try:
        return checked(path, value, rule)
    except InvalidRequestError as error:
        raise invalid(str(error), path) from error
