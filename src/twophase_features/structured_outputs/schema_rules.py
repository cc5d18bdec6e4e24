"""JSON Schema rules that the grammar library does not enforce: refused by name, or replaced by narrower ones.

Schemas are untrusted input, so all checks take linear time and are not recursive.
"""

import json
import math
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

Part = dict[str, Any]

NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}  # the keys inside are names
DATA = {"const", "enum"}  # their values are data, not schemas
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
MAX_MULTIPLE = 2**32  # the library computes least common multiples modulo this

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = "(?:(?:0[13578]|1[02])-31|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"(?:{_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_ZONE = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?{_ZONE}"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
# Formats whose pattern in the library accepts texts that validators refuse: the 29th of February in any year, the year
# 0, leap seconds at any time, host names of any length.
FORMATS: dict[str, Part] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "hostname": {"pattern": rf"^{_LABEL}(?:\.{_LABEL})*$", "maxLength": 253},
}


def enforceable(schema_text: str) -> str:
    """The schema as the library enforces it.

    Raises:
        ValueError: It would not; names the keyword, its value and a way out.
    """
    schema = json.loads(schema_text)
    parts = list(_parts(schema))
    for part in parts:
        _check_min_properties(part)
        if part is not schema and isinstance(part.get("$id"), str):
            raise ValueError(f"$id={part['$id']!r} inside of a schema; put the part under '$defs'")
    for group in _groups(parts, schema):
        _check_exclusive_bounds(group)
        _check_multiples(group)
    for part in parts:
        _narrow_format(part)
    return json.dumps(schema)


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


def _groups(parts: list[Part], schema: Any) -> Iterator[list[Part]]:
    """Parts that may apply to the same value: parts joined by allOf, anyOf, oneOf or $ref, in either direction.

    More may be in a group than ever apply together: two parts that refer to a third.
    """
    joined: dict[int, list[Part]] = {}
    for part in parts:
        for other in _joined_to(part, schema):
            joined.setdefault(id(part), []).append(other)
            joined.setdefault(id(other), []).append(part)
    seen: set[int] = set()
    for part in parts:
        group, stack = [], [part]
        while stack:
            each = stack.pop()
            if id(each) not in seen:
                seen.add(id(each))
                group.append(each)
                stack += joined.get(id(each), ())
        yield group


def _joined_to(part: Part, schema: Any) -> list[Part]:
    others = [each for key in ("allOf", "anyOf", "oneOf") if isinstance(part.get(key), list) for each in part[key]]
    if isinstance(part.get("$ref"), str):
        others.append(_resolved(part["$ref"], schema))
    return [each for each in others if isinstance(each, dict)]


def _resolved(reference: str, schema: Any) -> Any:
    """The target of '#/$defs/name'; None: there is no such place, as the library will report."""
    if reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"$ref={reference[:80]!r}; refer to a place in the schema, such as '#/$defs/name'")
    for key in reference.split("/")[1:]:
        key = unquote(key).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, dict):
            schema = schema.get(key)
        elif isinstance(schema, list) and key.isdecimal() and len(key) < 9:
            schema = schema[int(key)] if int(key) < len(schema) else None
        else:
            return None
    return schema


def _check_min_properties(part: Part) -> None:
    """Refuses minProperties where the library could meet it by writing one property twice, which parsers count once."""
    at_least, required = part.get("minProperties"), part.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    if isinstance(at_least, int) and at_least > max(1, num_required):
        raise ValueError(f"minProperties={at_least} with {num_required} names in 'required'; name as many there")


def _check_exclusive_bounds(group: list[Part]) -> None:
    """Refuses an exclusive bound that the library does not enforce: a whole number, with the other bound less than 1
    away.

    It writes {"exclusiveMinimum": 1, "maximum": 1.5} as if 1 were allowed.
    """
    bounds = {name: [value for part in group for value in _number(part, name)] for name in BOUNDS}
    for exclusive, others in (
        ("exclusiveMinimum", ("maximum", "exclusiveMaximum")),
        ("exclusiveMaximum", ("minimum", "exclusiveMinimum")),
    ):
        whole = (math.floor, math.ceil)  # an integer less than 1 away from a bound is the bound's floor or ceiling
        near: dict[int | float, tuple[str, int | float]] = {
            to_whole(other): (name, other) for name in others for other in bounds[name] for to_whole in whole
        }
        for bound in bounds[exclusive]:
            if bound in near:
                name, other = near[bound]
                inside = f"{exclusive[9:].lower()}={bound + (other - bound) / 100:g}"
                raise ValueError(
                    f"{exclusive}={bound} with {name}={other}, less than 1 away, which would let {bound} through; use "
                    f"an inclusive bound such as {inside}"
                )


def _check_multiples(group: list[Part]) -> None:
    factors = {value for part in group for value in _number(part, "multipleOf")}
    if len(factors) > 1 and (math.prod(factors) >= MAX_MULTIPLE or any(isinstance(each, float) for each in factors)):
        raise ValueError(
            f"multipleOf={' and '.join(map(str, sorted(factors)[:2]))} of one number, which would be computed modulo "
            f"2**32; give their least common multiple"
        )


def _number(part: Part, name: str) -> list[int | float]:
    value = part.get(name)
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else []


def _narrow_format(part: Part) -> None:
    narrower = FORMATS.get(part["format"]) if isinstance(part.get("format"), str) else None
    beside = part.setdefault("allOf", []) if narrower else None
    if isinstance(beside, list):
        beside.append(narrower)
        del part["format"]
