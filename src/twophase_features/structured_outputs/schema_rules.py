"""JSON Schema rules that the grammar library does not enforce: refused by name.

Schemas are untrusted input, so the check takes linear time and is not recursive.
"""

from collections.abc import Iterator
from typing import Any

Part = dict[str, Any]

NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}  # the keys inside are names
DATA = {"const", "enum"}  # their values are data, not schemas


def check_schema(schema: Any) -> None:
    """Raises ValueError for a keyword that would not be enforced; names the keyword, its value and a way out."""
    for part in _parts(schema):
        _check_min_properties(part)
        if part is not schema and isinstance(part.get("$id"), str):
            raise ValueError(f"$id={part['$id']!r} inside of a schema; put the part under '$defs'")
        reference = part.get("$ref", "#")
        if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
            raise ValueError(f"$ref={reference[:80]!r}; refer to a place in the schema, such as '#/$defs/name'")


def _parts(schema: Any) -> Iterator[Part]:
    """Every object in it that may be a schema."""
    stack = [(schema, False)]
    while stack:
        value, has_names = stack.pop()
        if isinstance(value, list):
            stack += [(each, False) for each in value]
        elif isinstance(value, dict):
            if not has_names:
                yield value
            inner = ((key, each) for key, each in value.items() if has_names or key not in DATA)
            stack += [(each, key in NAMED and not has_names) for key, each in inner]


def _check_min_properties(part: Part) -> None:
    """Refuses minProperties where the library could meet it by writing one property twice, which parsers count once."""
    at_least, required = part.get("minProperties"), part.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    if isinstance(at_least, int) and at_least > max(1, num_required):
        raise ValueError(f"minProperties={at_least} with {num_required} names in 'required'; name as many there")
