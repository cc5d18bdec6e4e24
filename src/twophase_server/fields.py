"""The fields of JSON objects: tables that read a request, and that say in JSON Schema which values a request may have.

No field is ignored: unknown fields are refused by name.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import (
    TEXT,
    Rule,
    checked,
    items_of,
    one_of,
    read_flag,
    read_int,
    read_text,
    shown,
    whole_number,
)
from twophase_server.errors import invalid

MAX_NAME = 512  # characters of a model's, a user's, a format's name
NULL = {"type": "null"}


@runtime_checkable
class Reader(Protocol):
    """Reads a value of a request."""

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the values."""

    def read(self, value: Any, path: str) -> Any:
        """The normalised value. Raises ApiError (400), which names the path, if the value breaks a rule."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A value with a rule. `schema` is the rule as far as JSON Schema can express it."""

    rule: Rule
    schema: Mapping[str, Any]

    def read(self, value: Any, path: str) -> Any:
        try:
            return checked(path, value, self.rule)
        except InvalidRequestError as error:
            raise invalid(str(error), path) from error


@final
@dataclass(frozen=True, slots=True, eq=False)
class ListOf:
    """A list."""

    item: Reader
    at_most: int
    at_least: int = 0

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"type": "array", "items": self.item.schema, "minItems": self.at_least, "maxItems": self.at_most}

    @property
    def outer(self) -> Field:
        """The list alone: a long one's items are read later, in another thread."""
        rule = Rule(
            f"a list of {self.at_least} to {self.at_most} items",
            lambda value: list(items_of(value)),
            lambda found: self.at_least <= len(found) <= self.at_most,
        )
        return Field(rule, self.schema)

    def read(self, value: Any, path: str) -> list[Any]:
        return [self.item.read(each, f"{path}[{i}]") for i, each in enumerate(self.outer.read(value, path))]


class Unsupported(NamedTuple):
    """A field of OpenAI's or vLLM's API that this server lacks. A `neutral` value is accepted: it changes nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """An object with these fields and no others. A null field counts as left out.

    Attributes:
        required: Fields that may not be left out.
    """

    fields: Mapping[str, Reader]
    unsupported: Mapping[str, Unsupported] = field(default_factory=dict)
    required: Sequence[str] = ()

    @property
    def schema(self) -> Mapping[str, Any]:
        properties: dict[str, Any] = {
            name: each.schema if name in self.required else {"anyOf": [each.schema, NULL]}
            for name, each in self.fields.items()
        }
        for name, (why, neutral) in self.unsupported.items():
            properties[name] = {"enum": [*neutral, None], "description": f"Not supported: {why}."}
        found = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**found, "required": list(self.required)} if self.required else found

    def read(self, value: Any, path: str = "") -> dict[str, Any]:
        """The fields that are not null."""
        within, found = f"{path}." if path else "", {}
        for name, each in OBJECT.read(value, path or "the body").items():
            where = within + name
            if name in self.fields:
                if each is not None:
                    found[name] = self.fields[name].read(each, where)
            elif name in self.unsupported:
                why, neutral = self.unsupported[name]
                if each is not None and not any(type(each) is type(it) and each == it for it in neutral):
                    raise invalid(
                        f"{where} is not supported: {why}. Got {shown(each)}.", where, "unsupported_parameter"
                    )
            else:
                near = difflib.get_close_matches(name, self.fields, n=1) if len(name) <= MAX_NAME else []
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise invalid(f"unknown field {shown(where)}.{hint}", where, "unknown_parameter")
        for name in self.required:
            if name not in found:
                raise invalid(f"{within}{name} is missing.", within + name)
        return found


FLAG = Field(Rule("true or false", read_flag), {"type": "boolean"})
OBJECT = Field(Rule("a JSON object", holds=lambda value: isinstance(value, dict)), {"type": "object"})
ANY_TEXT = Field(TEXT, {"type": "string"})


def text(at_most: int) -> Field:
    """A text of limited length."""
    rule = Rule(f"text of at most {at_most} characters", read_text, lambda found: len(found) <= at_most)
    return Field(rule, {"type": "string", "maxLength": at_most})


def whole(at_least: int | None = None, at_most: int | None = None, note: str = "") -> Field:
    """A whole number; `note` is for the message of a refusal."""
    bounds = {"minimum": at_least, "maximum": at_most}
    schema = {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}
    return Field(whole_number(at_least, at_most, note), schema)


def choice(*names: str) -> Field:
    """One of these texts."""
    return Field(one_of(*names), {"enum": list(names)})


def read_ints(value: Any) -> list[int]:
    """A list of whole numbers, at the speed of C where they are Python's own."""
    items = list(items_of(value))
    return items if set(map(type, items)) <= {int} else [read_int(item) for item in items]


NAME = text(MAX_NAME)
TOKEN_ID = {"type": "integer", "minimum": 0}
