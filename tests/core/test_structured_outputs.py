"""What is asked of a text: refused at once if it could mean nothing, and fixed from then on."""

import json

import pytest

from twophase import SamplingParams, StructuredOutputs
from twophase.core.errors import InvalidRequestError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of json, regex, choice, tool_calls, got none"),
        ({"json": "{}", "regex": "a", "choice": ["a"]}, "got json and regex and choice"),
        ({"json": "{'type': 'object'}"}, "this is not JSON: Expecting property name"),
        ({"json": {"enum": [{1, 2}]}}, "this is not JSON: Object of type set"),
        ({"json": "[1, 2]"}, r"an object such as .*, got \[1, 2\]"),
        ({"regex": ""}, "non-empty regular expression, got ''"),
        ({"choice": "yes"}, "list of at least one text, got 'yes'"),
        ({"choice": ["yes", ""]}, "each of structured_outputs.choice must be non-empty text, got ''"),
    ],
)
def test_nonsense_is_refused_by_name(given, message):
    with pytest.raises(InvalidRequestError, match=message):
        StructuredOutputs(**given)


def test_kinds():
    kinds = [StructuredOutputs(**given).kind for given in ({"json": SCHEMA}, {"regex": "a"}, {"choice": ("a", "b")})]
    assert kinds == ["json", "regex", "choice"]


def test_a_schema_is_the_same_as_dict_and_as_text_and_cannot_change():
    schema = json.loads(json.dumps(SCHEMA))
    outputs = StructuredOutputs(json=schema)
    schema["properties"]["a"]["type"] = "string"
    assert outputs == StructuredOutputs(json=json.dumps(SCHEMA, indent=4))
    assert json.loads(outputs.json) == SCHEMA
    choices = ["a", "b"]
    chosen = StructuredOutputs(choice=choices)
    choices.append("c")
    assert chosen.choice == ("a", "b")
    assert len({outputs, chosen}) == 2


@pytest.mark.parametrize("name", ["ignore_eos", "include_stop_str_in_output"])
def test_what_would_follow_the_text_contradicts_it(name):
    with pytest.raises(InvalidRequestError, match=f"structured_outputs and {name}=True contradict"):
        SamplingParams(structured_outputs=StructuredOutputs(regex="a"), **{name: True})
    assert SamplingParams(structured_outputs=StructuredOutputs(regex="a")).structured_outputs.regex == "a"
