"""Random JSON Schemas of the kinds that people write: each has at least one instance."""

import random
from typing import Any

Schema = dict[str, Any]
NAMES = ("name", "id", "a", "é", "x y", "tags", "kind")


def random_schema(seed: int) -> Schema:
    """An object at the top, as a rule; up to three levels deep; a third of them with a shared definition."""
    rng = random.Random(seed)
    schema = _object(rng, depth=2) if rng.random() < 0.8 else _any(rng, depth=2)
    if "properties" in schema and rng.random() < 0.3:
        schema["$defs"] = {"shared": _any(rng, depth=1)}
        schema["properties"]["shared"] = {"$ref": "#/$defs/shared"}
        schema["required"] = [*schema.get("required", []), "shared"]
    return schema


def _any(rng: random.Random, depth: int) -> Schema:
    leaves = [_string, _integer, _number, _enum, _constant, _several_types]
    return rng.choice(leaves + [_object, _array, _tuple, _any_of, _all_of] * (depth > 0))(rng, depth)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 4))
    required = [name for name in names if rng.random() < 0.6]
    schema: Schema = {"type": "object", "properties": {name: _any(rng, depth - 1) for name in names}}
    if required or rng.random() < 0.5:
        schema["required"] = required
    kind = rng.choice(["closed"] * 4 + ["open", "typed"])
    if kind == "closed":
        schema["additionalProperties"] = False
    elif kind == "typed":
        schema["additionalProperties"] = _integer(rng, 0)
        schema |= {"required": names, "minProperties": 1, "maxProperties": len(names) + 1}
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    at_least = rng.randint(0, 2)
    return {
        "type": "array", "items": _any(rng, depth - 1), "minItems": at_least, "maxItems": at_least + rng.randint(0, 3)
    }  # fmt: skip


def _tuple(rng: random.Random, depth: int) -> Schema:
    return {"type": "array", "prefixItems": [_any(rng, depth - 1), _any(rng, 0)], "minItems": 2, "items": False}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def _all_of(rng: random.Random, depth: int) -> Schema:
    return {"allOf": [_object(rng, 0) | {"additionalProperties": True}, {"type": "object", "required": ["more"]}]}


def _string(rng: random.Random, depth: int) -> Schema:
    extra: list[Schema] = [
        {"maxLength": rng.randint(0, 6)},
        {"minLength": 2, "maxLength": 5},
        {"pattern": r"^[A-Z]{2}-\d{1,3}$"},
        {"pattern": "ab+c"},
        {"format": "date"},
        {},
    ]
    return {"type": "string"} | rng.choice(extra)


def _integer(rng: random.Random, depth: int) -> Schema:
    low, width = rng.randint(-150, 150), rng.randint(10, 300)
    extra: list[Schema] = [
        {"minimum": low, "maximum": low + width},
        {"exclusiveMinimum": low, "exclusiveMaximum": low + width},
        {"minimum": low},
        {"multipleOf": rng.choice([2, 3, 7])},
        {},
    ]
    return {"type": "integer"} | rng.choice(extra)


def _number(rng: random.Random, depth: int) -> Schema:
    low = round(rng.uniform(-20, 20), rng.randint(0, 2))
    high = round(low + rng.uniform(1, 30), 1)
    extra: list[Schema] = [{"minimum": low, "maximum": high}, {"exclusiveMinimum": low, "exclusiveMaximum": high}, {}]
    return {"type": "number"} | rng.choice(extra)


def _enum(rng: random.Random, depth: int) -> Schema:
    return {"enum": rng.sample(["red", "GREEN", "日本", 1, 2.5, None, True, [1, "x"], {"k": None}], rng.randint(1, 4))}


def _constant(rng: random.Random, depth: int) -> Schema:
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {"const": "fixed"}])


def _several_types(rng: random.Random, depth: int) -> Schema:
    return {"type": ["string", "null", "integer"], "maxLength": 4, "minimum": 0}
