"""The form that an output's text must have. The fields are named as in vLLM's `StructuredOutputsParams`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.core.errors import InvalidRequestError
from twophase.core.rules import NON_EMPTY_TEXT, Rule, checked, shown
from twophase_features.structured_outputs.tool_calls import ToolCalls, read_schema

KINDS = ("json", "regex", "choice", "tool_calls")
REGEX = Rule("a non-empty regular expression", NON_EMPTY_TEXT.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The whole output, from its first character to its end, is of this form. Exactly one field is given.

    Only rules about the field itself are checked here; `Engine.add_request` refuses a form that the engine cannot
    enforce. Everything is kept as text, so it cannot be changed afterwards.

    Attributes:
        json: A JSON Schema, as a dict or as JSON text; kept as text. The output is one JSON value that it accepts,
            written as Python's json.dumps writes it: ', ' and ': ' between the parts, no other white space.
        regex: A regular expression in the syntax of Rust's `regex` crate, which is that of `re` without look-around,
            word boundaries and back-references; \\d, \\w and \\s mean ASCII. The output matches it as a whole, as with
            `re.fullmatch`.
        choice: The output is one of these texts.
        tool_calls: The output calls functions.

    Raises:
        InvalidRequestError: No field is given, or several; or the form has no meaning.
    """

    json: Mapping[str, Any] | str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    tool_calls: ToolCalls | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise InvalidRequestError(
                f"structured_outputs takes exactly one of {', '.join(KINDS)}, got {' and '.join(given) or 'none'}."
            )
        if self.json is not None:
            object.__setattr__(self, "json", json.dumps(read_schema("structured_outputs.json", self.json)))
        elif self.regex is not None:
            checked("structured_outputs.regex", self.regex, REGEX)
        elif self.choice is not None:
            object.__setattr__(self, "choice", _checked_choice(self.choice))
        elif not isinstance(self.tool_calls, ToolCalls):
            raise InvalidRequestError(f"structured_outputs.tool_calls must be ToolCalls, got {shown(self.tool_calls)}.")

    @property
    def kind(self) -> str:
        """'json', 'regex', 'choice' or 'tool_calls'."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


def check_params(params: Any) -> None:
    """Check a request's `structured_outputs` and the parameters that contradict them; `params` are `SamplingParams`.
    Raises InvalidRequestError if `structured_outputs` is something else, or another parameter would let text follow it.
    """
    if not isinstance(params.structured_outputs, StructuredOutputs):
        raise InvalidRequestError(
            f"structured_outputs must be StructuredOutputs(json=...), (regex=...) or (choice=...), got "
            f"{shown(params.structured_outputs)}."
        )
    for name in ("ignore_eos", "include_stop_str_in_output", "min_tokens"):
        if getattr(params, name):
            raise InvalidRequestError(
                f"structured_outputs and {name}={getattr(params, name)} contradict each other: text after the output "
                f"would be part of the output. Leave out one of them."
            )


def _checked_choice(choice: Any) -> tuple[str, ...]:
    if isinstance(choice, str) or not isinstance(choice, Sequence) or not choice:
        raise InvalidRequestError(
            f"structured_outputs.choice must be a list of at least one text, got {shown(choice)}."
        )
    return tuple(checked("each of structured_outputs.choice", text, NON_EMPTY_TEXT) for text in choice)
