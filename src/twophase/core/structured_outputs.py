"""What the text of an output must look like. The place of vLLM's `StructuredOutputsParams`, with its field names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.core.errors import InvalidRequestError

KINDS = ("json", "regex", "choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """The whole output, from its first character to its end, is of this form. Exactly one field is given.

    Only what can be read off the field itself is checked here; whether the engine can enforce it, `Engine.add_request`
    tells (see `twophase.engine.guidance`). Everything is kept as text, so nobody can change it afterwards.

    Attributes:
        json: A JSON Schema, as a dict or as JSON text; kept as text. The output is one JSON value that it accepts,
            written as Python's json.dumps writes it: ', ' and ': ' between the parts, no other white space.
        regex: A regular expression in the syntax of Rust's `regex` crate, which is that of `re` without look-around,
            word boundaries and back-references; \\d, \\w and \\s mean ASCII. The output matches it as a whole, as with
            `re.fullmatch`.
        choice: The output is one of these texts.

    Raises:
        InvalidRequestError: None or several are given; or one that could mean nothing.
    """

    json: Mapping[str, Any] | str | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise InvalidRequestError(
                f"structured_outputs takes exactly one of {', '.join(KINDS)}, got {' and '.join(given) or 'none'}."
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        elif self.regex is not None:
            if not isinstance(self.regex, str) or not self.regex:
                raise InvalidRequestError(
                    f"structured_outputs.regex must be a non-empty regular expression, got {self.regex!r}."
                )
        else:
            object.__setattr__(self, "choice", _checked_choice(self.choice))

    @property
    def kind(self) -> str:
        """'json', 'regex' or 'choice'."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


def _schema_text(schema: Any) -> str:
    """The schema as JSON text, whichever way it was given; a boolean schema is no use here and refused."""
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(found)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(
            f"structured_outputs.json must be a JSON Schema, and this is not JSON: {error}."
        ) from error
    if not isinstance(found, Mapping):
        raise InvalidRequestError(
            f"structured_outputs.json must be a JSON Schema, an object such as {{'type': 'object'}}, got {text[:80]}."
        )
    return text


def _checked_choice(choice: Any) -> tuple[str, ...]:
    if isinstance(choice, str) or not isinstance(choice, Sequence) or not choice:
        raise InvalidRequestError(f"structured_outputs.choice must be a list of at least one text, got {choice!r}.")
    for text in choice:
        if not isinstance(text, str) or not text:
            raise InvalidRequestError(f"each of structured_outputs.choice must be non-empty text, got {text!r}.")
    return tuple(choice)
