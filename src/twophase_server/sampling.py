"""Converts the fields of a request into `SamplingParams`."""

from collections.abc import Mapping
from typing import Any

from twophase.core.errors import InvalidRequestError
from twophase.core.request import MAX_SEED, MAX_STOP_CHARACTERS, MAX_STOP_TOKEN_IDS, MAX_STOPS, RULES, SamplingParams
from twophase.core.rules import DURATION, Rule, number
from twophase_features.structured_outputs.params import StructuredOutputs
from twophase_server.errors import invalid
from twophase_server.fields import (
    ANY_TEXT,
    FLAG,
    NAME,
    OBJECT,
    TOKEN_ID,
    Field,
    Reader,
    Table,
    Unsupported,
    choice,
    whole,
)

MAX_BIASES = 1024  # OpenAI's is 300


def _logit_bias(value: Any) -> Any:
    """Token ids are written as text, '42', because JSON's keys are text."""
    biases = OBJECT.rule.read(value)
    if len(biases) > MAX_BIASES:
        raise ValueError
    return RULES["logit_bias"].read({int(key): bias for key, bias in biases.items()})


_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_PENALTY = {"type": "number", "minimum": -2, "maximum": 2}
_FLAG_NAMES = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "n": {"type": "integer", "minimum": 1},
    "temperature": {"type": "number", "minimum": 0},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "seed": {"type": "integer", "minimum": 0, "maximum": MAX_SEED},
    "max_tokens": {"type": "integer", "minimum": 1},
    "stop": {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MAX_STOPS}]},
    # vLLM's, by its names:
    "top_k": {"type": "integer", "minimum": -1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
    "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 100},
    "min_tokens": {"type": "integer", "minimum": 0},
    "stop_token_ids": {"type": "array", "items": TOKEN_ID, "maxItems": MAX_STOP_TOKEN_IDS},
}
_BIASES = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,9}$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    "maxProperties": MAX_BIASES,
}

# Fields that become sampling parameters unchanged.
SAMPLING: Mapping[str, Field] = {
    **{name: Field(RULES[name], schema) for name, schema in _SCHEMAS.items()},
    **dict.fromkeys(_FLAG_NAMES, FLAG),
    "logit_bias": Field(Rule(f"{RULES['logit_bias'].words}, at most {MAX_BIASES} of them", _logit_bias), _BIASES),
}

# Fields that OpenAI's clients send and that change nothing here (docs/server.md has the reasons).
IGNORED: Mapping[str, Field] = {
    **dict.fromkeys(("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"), ANY_TEXT),
    **dict.fromkeys(("store",), FLAG),
    **dict.fromkeys(("metadata",), OBJECT),
}

# Fields of the scheduler, which all endpoints have that run the model.
SCHEDULING: Mapping[str, Field] = {
    "priority": whole(note="(lower runs first)"),
    "cache_salt": NAME,
    "ttft_slo_s": Field(number("a finite number of seconds >= 0", lambda x: x >= 0), {"type": "number", "minimum": 0}),
    "deadline_s": Field(DURATION, {"type": "number", "exclusiveMinimum": 0, "maximum": 1e9}),
}

SCHEMA_FIELDS = {"name": NAME, "schema": OBJECT, "description": ANY_TEXT, "strict": FLAG}
_FORMAT = Table(
    {
        "type": choice("text", "json_object", "json_schema"),
        "json_schema": Table(SCHEMA_FIELDS, required=("schema",)),
    },
    required=("type",),
)
_CHOICES = Field(Rule("a list of texts"), {"type": "array", "items": {"type": "string"}})
_STRUCTURE = Table({"json": OBJECT, "regex": ANY_TEXT, "choice": _CHOICES})
_STREAM = Table({"include_usage": FLAG, "continuous_usage_stats": FLAG})

# Further fields of completions and chats.
COMMON: Mapping[str, Reader] = {
    **SAMPLING,
    **IGNORED,
    **SCHEDULING,
    **dict.fromkeys(("reasoning_effort", "verbosity"), ANY_TEXT),
    "prediction": OBJECT,
    "model": NAME,
    "stream": FLAG,
    "stream_options": _STREAM,
    "response_format": _FORMAT,
    "structured_outputs": _STRUCTURE,
}

COMMON_UNSUPPORTED = {
    "best_of": Unsupported("each of the n completions is returned", (1,)),
    "use_beam_search": Unsupported("over HTTP there is sampling alone", (False,)),
    "guided_json": Unsupported("use response_format, or structured_outputs.json"),
    "guided_regex": Unsupported("use structured_outputs.regex"),
    "guided_choice": Unsupported("use structured_outputs.choice"),
    "prompt_logprobs": Unsupported("use /v1/completions with echo and logprobs"),
}


def sampling_params(
    fields: Mapping[str, Any], forms: Mapping[str, StructuredOutputs | None], **more: Any
) -> SamplingParams:
    """The parameters for fields read by `SAMPLING`, and for `more`.

    Args:
        forms: Field -> the form of the text for which it asks.

    Raises:
        ApiError: 400, two fields contradict each other, or the structured output is invalid.
    """
    given = {name: value for name, value in fields.items() if name in SAMPLING} | more
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    asked = {name: form for name, form in forms.items() if form is not None}
    if len(asked) > 1:
        raise invalid(f"{' and '.join(asked)} both constrain the text; give one of them.")
    try:
        return SamplingParams(**given, structured_outputs=next(iter(asked.values()), None))
    except InvalidRequestError as error:
        raise invalid(str(error)) from error


def forms_of(fields: Mapping[str, Any]) -> dict[str, StructuredOutputs | None]:
    """The forms of the text for which response_format and structured_outputs ask. Raises as `sampling_params`."""
    asked = fields.get("response_format", {"type": "text"})
    schema = asked.get("json_schema", {}).get("schema")
    return {
        "response_format": json_form(asked["type"], schema, "response_format.json_schema"),
        "structured_outputs": structured(**fields["structured_outputs"]) if "structured_outputs" in fields else None,
    }


def json_form(kind: str, schema: Mapping[str, Any] | None, path: str) -> StructuredOutputs | None:
    """The form for a type 'text', 'json_object' or 'json_schema' (which is enforced, strict or not).

    Args:
        path: The field of the schema.

    Raises:
        ApiError: 400, there is a schema and another type, or the type and no schema; or the form is wrong.
    """
    if (kind == "json_schema") != (schema is not None):
        raise invalid(f"{path} requires type 'json_schema', and the type requires it; got type {kind!r}.", path)
    return None if kind == "text" else structured(json={"type": "object"} if schema is None else schema)


def structured(**form: Any) -> StructuredOutputs:
    """Raises ApiError (400) for a wrong form."""
    try:
        return StructuredOutputs(**form)
    except InvalidRequestError as error:
        raise invalid(str(error)) from error


def wants_usage(fields: Mapping[str, Any]) -> tuple[bool, bool]:
    """`stream_options`: whether a stream reports its usage in an additional last chunk (OpenAI's include_usage), and
    then also the usage so far in each chunk (vLLM's continuous_usage_stats). Raises ApiError (400) without `stream`.
    """
    options = fields.get("stream_options")
    if options is None:
        return False, False
    if not fields.get("stream"):
        raise invalid("stream_options require stream=true.", "stream_options")
    at_end = options.get("include_usage", False)
    return at_end, at_end and options.get("continuous_usage_stats", False)
