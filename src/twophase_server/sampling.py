"""Converts the fields of a request into `SamplingParams`."""

from collections.abc import Mapping
from typing import Any

from twophase.core.errors import InvalidRequestError
from twophase.core.request import RULES, SamplingParams
from twophase.core.rules import DURATION, TEXT, Rule, number, one_of, whole_number
from twophase_features.structured_outputs.params import StructuredOutputs
from twophase_server.errors import invalid
from twophase_server.fields import FLAG, NAME, OBJECT, Unsupported, read_fields

MAX_BIASES = 1024  # OpenAI's is 300


def _logit_bias(value: Any) -> Any:
    """Token ids are written as text, '42', because JSON's keys are text."""
    biases = OBJECT.read(value)
    if len(biases) > MAX_BIASES:
        raise ValueError
    return RULES["logit_bias"].read({int(key): bias for key, bias in biases.items()})


FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
PLAIN = ("n", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens", "stop")
VLLM = ("top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids")  # its extras, by its names

# Fields of both endpoints that become sampling parameters unchanged.
SAMPLING_RULES: dict[str, Rule] = {name: RULES[name] for name in (*PLAIN, *VLLM)} | dict.fromkeys(FLAGS, FLAG)
SAMPLING_RULES["logit_bias"] = Rule(f"{RULES['logit_bias'].words}, at most {MAX_BIASES} of them", _logit_bias)

# Fields that OpenAI's clients send and that change nothing here (docs/server.md has the reasons).
IGNORED_RULES: dict[str, Rule] = {
    **dict.fromkeys(("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"), TEXT),
    **dict.fromkeys(("reasoning_effort", "verbosity"), TEXT),
    **dict.fromkeys(("store", "parallel_tool_calls"), FLAG),
    **dict.fromkeys(("metadata", "prediction"), OBJECT),
}

# Further fields of both endpoints.
COMMON_RULES: dict[str, Rule] = {
    **IGNORED_RULES,
    "model": NAME,
    "stream": FLAG,
    "stream_options": OBJECT,
    "response_format": OBJECT,
    "structured_outputs": OBJECT,
    "priority": whole_number(note="(lower runs first)"),
    "cache_salt": NAME,
    "ttft_slo_s": number("a finite number of seconds >= 0", lambda x: x >= 0),
    "deadline_s": DURATION,
}

COMMON_UNSUPPORTED = {
    "best_of": Unsupported("each of the n completions is returned", (1,)),
    "use_beam_search": Unsupported("over HTTP there is sampling alone", (False,)),
    "guided_json": Unsupported("use response_format, or structured_outputs.json"),
    "guided_regex": Unsupported("use structured_outputs.regex"),
    "guided_choice": Unsupported("use structured_outputs.choice"),
    "prompt_logprobs": Unsupported("use /v1/completions with echo and logprobs"),
}

_FORMAT_RULES = {"type": one_of("text", "json_object", "json_schema"), "json_schema": OBJECT}
_SCHEMA_RULES = {"name": NAME, "schema": OBJECT, "description": TEXT, "strict": FLAG}
_STRUCTURE_RULES = {"json": OBJECT, "regex": TEXT, "choice": Rule("a list of texts")}
_STREAM_RULES = {"include_usage": FLAG, "continuous_usage_stats": FLAG}


def sampling_params(fields: Mapping[str, Any], **more: Any) -> SamplingParams:
    """The parameters for fields read by `SAMPLING_RULES` and `COMMON_RULES`, and for `more`.

    Raises:
        ApiError: 400, two fields contradict each other, or the structured output is invalid.
    """
    given = {name: value for name, value in fields.items() if name in SAMPLING_RULES} | more
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    try:
        return SamplingParams(**given, structured_outputs=_structure(fields))
    except InvalidRequestError as error:
        raise invalid(str(error)) from error


def _structure(fields: Mapping[str, Any]) -> StructuredOutputs | None:
    asked = fields.get("response_format")
    structure = fields.get("structured_outputs")
    form = None if asked is None else _response_format(asked)
    if structure is None:
        return form
    if form is not None:
        raise invalid("response_format and structured_outputs both constrain the text; give one of them.")
    return StructuredOutputs(**read_fields(structure, _STRUCTURE_RULES, path="structured_outputs"))


def _response_format(asked: Mapping[str, Any]) -> StructuredOutputs | None:
    """OpenAI's `response_format`: any text, any JSON object, or JSON of a schema (which is enforced, strict or not)."""
    found = read_fields(asked, _FORMAT_RULES, path="response_format", required=("type",))
    kind = found["type"]
    if (kind == "json_schema") != ("json_schema" in found):
        raise invalid(
            f"response_format.json_schema requires type 'json_schema', and the type requires it; got type {kind!r}.",
            "response_format.json_schema",
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json={"type": "object"})
    path = "response_format.json_schema"
    described = read_fields(found["json_schema"], _SCHEMA_RULES, path=path, required=("schema",))
    return StructuredOutputs(json=described["schema"])


def wants_usage(fields: Mapping[str, Any]) -> tuple[bool, bool]:
    """`stream_options`: whether a stream reports its usage in an additional last chunk (OpenAI's include_usage), and
    then also the usage so far in each chunk (vLLM's continuous_usage_stats). Raises ApiError (400) without `stream`.
    """
    options = fields.get("stream_options")
    if options is None:
        return False, False
    if not fields.get("stream"):
        raise invalid("stream_options require stream=true.", "stream_options")
    found = read_fields(options, _STREAM_RULES, path="stream_options")
    at_end = found.get("include_usage", False)
    return at_end, at_end and found.get("continuous_usage_stats", False)
