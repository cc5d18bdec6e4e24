"""/openapi.json says what the server reads: bodies that its schemas accept or refuse, and what became of them."""

import jsonschema
import pytest

from tests.server.conftest import MODEL
from twophase_server.app import ENDPOINTS

HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
LEAST = {
    CHAT: {"model": MODEL, "messages": HI, "max_tokens": 1},
    TEXT: {"model": MODEL, "prompt": "hi", "max_tokens": 1},
    RESPONSES: {"model": MODEL, "input": "hi", "max_output_tokens": 1},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [3]},
}
# Values at the edges of each kind of field, on both sides.
NUMBERS = [None, True, -2.5, -2, -1, 0, 0.005, 0.01, 1, 1.5, 2, 20, 21, 100, 101, 10**9, 2 * 10**9, 2**64 - 1, 2**64]
TEXTS = ["", "a", "a" * 256, "a" * 257, "a" * 512, "a" * 513, "auto", "none", "low", "disabled"]
LISTS = [[], ["a"], [""], [3], [-1], [3, "a"], [[3]], [[]], ["a"] * 32, ["a"] * 33, [True], [None]]
OBJECTS = [{}, {"a": 1}, {"3": 1}, {"3": 101}, {"type": "text"}, {"type": "json_object"}, {"type": "xml"}]
VALUES = [*NUMBERS, *TEXTS, *LISTS, *OBJECTS]
# A value may be valid alone and wrong beside another field, which JSON Schema is not made to say.
JOINTLY = {"max_completion_tokens", "top_logprobs", "stream_options", "tool_choice", "min_tokens"}
READ_LATER = {"model", "messages", "input", "prompt"}  # beyond their types


@pytest.fixture(scope="module")
def document(http):
    answer = http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_each_endpoint_is_there(document):
    assert document["openapi"] == "3.1.0"
    assert {path for path, item in document["paths"].items() if "post" in item} == set(ENDPOINTS) == set(LEAST)
    assert "text/event-stream" in document["paths"][CHAT]["post"]["responses"]["200"]["content"]


def test_the_version(http, document):
    assert http.get("/version").json() == {"version": document["info"]["version"]}


def schema_of(document, path):
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", LEAST)
def test_the_least_request(http, document, path):
    assert schema_of(document, path).is_valid(LEAST[path])
    assert http.post(path, json=LEAST[path]).status_code == 200
    for name in ENDPOINTS[path].table.required:
        body = LEAST[path] | {name: None}
        assert not schema_of(document, path).is_valid(body)
        assert http.post(path, json=body).status_code == 400


@pytest.mark.parametrize("path", LEAST)
def test_a_table_refuses_what_its_schema_refuses(document, path):
    """And accepts what it accepts, field by field."""
    table, schema = ENDPOINTS[path].table, schema_of(document, path)
    differences = []
    for name in {*table.fields, *table.unsupported} - JOINTLY - READ_LATER:
        for value in VALUES:
            body = LEAST[path] | {name: value}
            try:
                table.read(body)
                is_read = True
            except Exception:
                is_read = False
            if is_read != schema.is_valid(body):
                differences.append((name, value, is_read))
    assert differences == []
