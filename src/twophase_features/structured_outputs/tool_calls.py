"""Calls of functions in a model's output: how they are written, the grammar of an output with calls, and its reading.

They are written as Hermes and Qwen models are trained to (https://github.com/NousResearch/Hermes-Function-Calling):

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>
"""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import checked, whole_number

OPENING, CLOSING = "<tool_call>\n", "\n</tool_call>"
MAX_CALLS = 16  # of one output, so that a model which repeats itself comes to an end
FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BEGUN = re.compile(rf'{{"name": "({FUNCTION_NAME.pattern})", "arguments": (.*)')
# Beside these, `properties` may be all properties that an object has.
_PLAIN = {"type", "properties", "required", "title", "description", "$defs", "definitions", "$schema"}


class Call(NamedTuple):
    """A call; `arguments` is JSON text, of which the end may be missing."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalls:
    """The functions that an output may call.

    Attributes:
        functions: Name -> JSON Schema of the arguments, an object; kept as pairs (name, JSON text). An object that
            lists its properties has no others, unless `additionalProperties` says so.
        is_required: The output is calls alone; else it is any text, after which calls may follow.
        max_calls: Calls in one output.
        answer: The JSON Schema of an output that calls nothing, in place of any text; kept as JSON text.

    Raises:
        InvalidRequestError: There is no function; or a name, a schema or the number is wrong.
    """

    functions: Any  # Mapping[str, Mapping[str, Any]], or the pairs of one
    is_required: bool = False
    max_calls: int = MAX_CALLS
    answer: Any = None

    def __post_init__(self) -> None:
        checked("max_calls", self.max_calls, whole_number(at_least=1, at_most=MAX_CALLS))
        pairs = tuple((name, _parameters_text(name, schema)) for name, schema in dict(self.functions).items())
        if not pairs:
            raise InvalidRequestError("tool calls need at least one function.")
        object.__setattr__(self, "functions", pairs)
        if self.answer is not None:
            object.__setattr__(self, "answer", json.dumps(read_schema("the answer's form", self.answer)))

    def grammar(self, as_library_enforces: Callable[[str], dict[str, Any]]) -> str:
        """The output's grammar in llguidance's JSON, with a grammar of its own for each function's arguments.

        Args:
            as_library_enforces: A schema's text -> the schema for the library; may raise ValueError.
        """
        heads = [json.dumps(f'{{"name": "{name}", "arguments": ') for name, _ in self.functions]
        calls = " | ".join(f'{head} @arguments_{i} "}}"' for i, head in enumerate(heads))
        opening, closing = json.dumps(OPENING), json.dumps(CLOSING)
        more = f'("\\n" {opening} call){{0,{self.max_calls - 1}}}' if self.max_calls > 1 else ""
        lark = [f"call: ({calls}) {closing}"]
        schemas = [(f"arguments_{i}", schema) for i, (_, schema) in enumerate(self.functions)]
        if self.is_required:
            lark += [f"start: {opening} call {more}"]
        elif self.answer is not None:
            lark += [f"start: @answer | {opening} call {more}"]
            schemas += [("answer", self.answer)]
        else:
            # A lazy head ends where the first opening does, so no text has an opening and then no call.
            lark += [f"start: TEXT | head call {more}", f"head[lazy]: TEXT {opening}", "TEXT: /(.|\\n)*/"]
        grammars: list[dict[str, Any]] = [{"name": "calls", "lark_grammar": "\n".join(lark)}]
        grammars += [{"name": name, "json_schema": as_library_enforces(schema)} for name, schema in schemas]
        return json.dumps({"grammars": grammars})


def read_schema(what: str, schema: Any) -> dict[str, Any]:
    """A JSON Schema, from JSON text or an object; boolean schemas are refused. Raises InvalidRequestError."""
    try:
        found = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
    except RecursionError as error:
        raise InvalidRequestError(f"{what} must not be nested as deep as this one is.") from error
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{what} must be a JSON Schema, and this is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise InvalidRequestError(
            f"{what} must be a JSON Schema, an object such as {{'type': 'object'}}, got {json.dumps(found)[:80]}."
        )
    return found


def _parameters_text(name: Any, schema: Any) -> str:
    if not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
        raise InvalidRequestError(f"a function's name must match {FUNCTION_NAME.pattern}, got {str(name)[:80]!r}.")
    found = read_schema(f"the parameters of {name}", schema)
    if found.get("type") != "object":
        raise InvalidRequestError(f"the parameters of {name} must be a JSON Schema of type 'object'.")
    is_listed = "properties" in found and _PLAIN.issuperset(found)
    return json.dumps({**found, "additionalProperties": False} if is_listed else found)


def written(call: Call) -> str:
    """A call as the model writes it."""
    return f'{OPENING}{{"name": "{call.name}", "arguments": {call.arguments}}}{CLOSING}'


def read_calls(text: str, is_last: bool = True) -> tuple[str, list[Call]]:
    """The text before the calls, and the calls that have begun, of an output in the form of `ToolCalls`.

    Args:
        text: The output so far.
        is_last: No more text follows. Otherwise the beginning of an opening is left out of the text.
    """
    before, opening, rest = text.partition(OPENING)
    if not opening and not is_last:
        before = before[: len(before) - _length_of_overlap(before)]
    # JSON in one line: a call, its closing, the next opening, and so on.
    begun = filter(None, map(_BEGUN.match, rest.split("\n")[::3]))
    return before, [Call(each[1], _arguments(each[2])) for each in begun]


def _length_of_overlap(text: str) -> int:
    """Characters at the text's end with which an opening may begin."""
    return next(n for n in range(len(OPENING) - 1, -1, -1) if text.endswith(OPENING[:n]))


def _arguments(text: str) -> str:
    """The arguments, without the brace that closes their call."""
    if text.endswith("}"):
        with suppress(ValueError):  # they are not complete
            return text[: json.JSONDecoder().raw_decode(text)[1]]
    return text
