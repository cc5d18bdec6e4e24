"""Garbage in: each refusal has its status, OpenAI's body, and a message that names the field, the value and the rule."""

import gzip

import openai
import pytest

from tests.engine.tokenizers_for_tests import byte_level
from tests.server.conftest import MODEL, check_refused, error_of, serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
DEEP = {"type": "object"}
for _ in range(120):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


def message(**fields):
    return {"messages": [{"role": "user", "content": "hi"} | fields]}


# Path, body, the field at fault (None where no single one is), words of the message.
BAD = {
    "no list of messages": (CHAT, {"messages": "hi"}, "messages", "must be a list of 1 to 4096 items, got 'hi'"),
    "an unknown role": (CHAT, message(role="cook"), "messages[0].role", "one of system, developer, user, assistant, tool, got 'cook'"),
    "no content": (CHAT, message(content=None), "messages[0].content", "is missing"),
    "content of another type": (CHAT, message(content=3), "messages[0].content", "must be text, or a list of parts"),
    "an image": (CHAT, message(content=[{"type": "image_url", "image_url": {"url": "x"}}]), "messages[0].content[0].type", "the model reads text only, no images"),
    "half a character": (CHAT, message(content="\ud800"), "messages[0].content", "must be text"),
    "no model": (CHAT, {"messages": HI, "model": None}, "model", "model is missing"),
    "sound": (CHAT, {"messages": HI, "modalities": ["audio"]}, "modalities", "the model writes text only"),
    "an unknown field": (CHAT, {"messages": HI, "temprature": 1}, "temprature", "Did you mean 'temperature'?"),
    "a hot temperature": (CHAT, {"messages": HI, "temperature": "hot"}, "temperature", "must be a finite number >= 0 (0 is greedy), got 'hot'"),
    "many completions": (CHAT, {"messages": HI, "n": 17}, "n", "n must be at most 16, got 17"),
    "more than places": (CHAT, {"messages": HI, "n": 9, "max_tokens": 1}, None, "n must be at most max_num_seqs=8, got n=9"),
    "two limits": (CHAT, {"messages": HI, "max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "mean the same; got 3 and 4"),
    "more than the pool": (CHAT, {"messages": HI, "n": 8, "max_tokens": 200}, None, "and the pool has 192"),
    "an empty stop": (CHAT, {"messages": HI, "stop": ["a", ""]}, "stop", "stop strings must be non-empty"),
    "a bias by words": (CHAT, {"messages": HI, "logit_bias": {"fox": 1}}, "logit_bias", "must be a mapping of token ids"),
    "a bias of a token that is none": (CHAT, {"messages": HI, "logit_bias": {"99999": 1}}, None, "logit_bias must be of tokens in the vocabulary"),
    "top_logprobs alone": (CHAT, {"messages": HI, "top_logprobs": 3}, "top_logprobs", "requires logprobs=true"),
    "options of no stream": (CHAT, {"messages": HI, "stream_options": {"include_usage": True}}, "stream_options", "require stream=true"),
    "an unknown format": (CHAT, {"messages": HI, "response_format": {"type": "xml"}}, "response_format.type", "must be one of text, json_object, json_schema, got 'xml'"),
    "a schema that is missing": (CHAT, {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema", "is missing"),
    "a schema that is none": (CHAT, {"messages": HI, "response_format": FORMAT}, None, "nonsense"),
    "a schema too deep": (CHAT, {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}}, None, "json cannot be enforced: recursion limit"),
    "two forms": (CHAT, {"messages": HI, "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, None, "response_format and structured_outputs"),
    "vLLM's older name": (CHAT, {"messages": HI, "guided_regex": "a"}, "guided_regex", "use structured_outputs.regex"),
    "min over max": (CHAT, {"messages": HI, "min_tokens": 5, "max_tokens": 4}, None, "min_tokens must not exceed max_tokens"),
    "a deadline of zero": (CHAT, {"messages": HI, "deadline_s": 0}, "deadline_s", "seconds > 0, at most 1e9, got 0"),
    "a long salt": (CHAT, {"messages": HI, "cache_salt": "u" * 513}, "cache_salt", "must be text of at most 512 characters"),
    "a long name of a field": (CHAT, {"messages": HI, "x" * 900_000: 1}, "x" * 2000, "unknown field 'xxx"),
    "a long value": (CHAT, {"messages": HI, "temperature": [[1] * 300_000]}, "temperature", "(0 is greedy), got [[1, 1, 1"),
    "many messages": (CHAT, {"messages": HI * 4097}, "messages", "must be a list of 1 to 4096 items"),
    "a conversation too long": (CHAT, message(content="fox " * 500), None, "max_model_len=256"),
    "a prompt that need not be read": (TEXT, {"prompt": [10**6] * 256}, None, "alone has 256 tokens"),
    "a deadline beyond all clocks": (TEXT, {"prompt": "a", "deadline_s": 9.3e9}, "deadline_s", "must be a finite number of seconds > 0, at most 1e9"),
    "a text too long": ("/tokenize", {"prompt": "fox " * 500}, None, "max_model_len=256"),
    "tokens that need not be decoded": ("/detokenize", {"tokens": [10**6] * 257}, "tokens", "at most 256, as many as the context has, got 257"),
    "prompt missing": (TEXT, {}, "prompt", "prompt is missing"),
    "an empty prompt": (TEXT, {"prompt": ""}, None, "at least one token"),
    "prompts of two kinds": (TEXT, {"prompt": ["a", [1]]}, "prompt", "must be text, a list of texts"),
    "many prompts": (TEXT, {"prompt": ["a"] * 65}, "prompt", "at most 64 prompts, got 65"),
    "a suffix": (TEXT, {"prompt": "a", "suffix": "z"}, "suffix", "writes on at the end only"),
    "best of": (TEXT, {"prompt": "a", "best_of": 3}, "best_of", "is not supported"),
    "messages for a text": (TEXT, {"prompt": "a", "messages": HI}, "messages", "use /v1/chat/completions"),
    "nothing to tokenize": ("/tokenize", {}, "prompt", "exactly one of prompt and messages"),
    "tokens beyond": ("/detokenize", {"tokens": [99999]}, "tokens", "must be in the vocabulary"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(chat_folder):
    with serving(chat_folder, {"max_num_seqs": 8}) as server:
        yield server


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_told_what_is_wrong(http, name):
    path, given, param, words = BAD[name]
    check_refused(http, path, {"model": MODEL} | given, param, words)


def test_nothing_of_it_was_left_behind(http, server):
    assert http.post(TEXT, json={"model": MODEL, "prompt": ["a", "b"], "max_tokens": 2}).status_code == 200
    assert server.llm.num_unfinished == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "must be JSON"),
        (b"{", "must be JSON"),
        (b"\xff\xfe", "not UTF-8 (invalid start byte at byte 0)"),
        (b'{"temperature": NaN}', "JSON has no NaN"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"n": ' + b"1" * 5000 + b"}", "must be JSON"),
        (b"[1]", "must be a JSON object, got [1]"),
        (b"null", "must be a JSON object, got None"),
    ],
)
def test_no_json(http, body, words):
    error = error_of(http.post(CHAT, content=body, headers={"content-type": "application/json"}), 400)
    assert error["code"] == "invalid_json"
    assert words in error["message"]


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"content-type": "text/plain"}, ""),
        ({}, ""),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "content-encoding must be identity"),
    ],
)
def test_a_body_of_another_type(http, headers, words):
    error = error_of(http.post(CHAT, content=gzip.compress(b"{}"), headers=headers), 415)
    assert error["code"] == "unsupported_media_type"
    assert error["message"].startswith(words)


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_special_tokens_in_content(http, path):
    """Text for the chat and for /tokenize alike, unless the request asks for the tokens."""

    def count(**more):
        body = {"model": MODEL} | message(content="<|end|>" * 3) | ({"max_tokens": 1} if path == CHAT else {}) | more
        found = http.post(path, json=body).json()
        return found["usage"]["prompt_tokens"] if path == CHAT else found["count"]

    plain = len(byte_level().encode("user: \nassistant:"))
    assert (count(special_tokens_in_content=True), count()) == (plain + 3, plain + 3 * 7)  # a token for each letter


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/v1/embeddings", 404), ("GET", CHAT, 405), ("POST", "/health", 405)],
)
def test_no_such_path(http, method, path, status):
    assert path in error_of(http.request(method, path), status)["message"]


def test_the_client_sees_the_field(client, chat_folder):
    with pytest.raises(openai.NotFoundError, match="got 'gpt-4'") as caught:
        client.chat.completions.create(model="gpt-4", messages=HI)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=chat_folder.name, messages=HI, temperature=-1)
    assert caught.value.param == "temperature"


def test_what_the_template_refuses(http, server, monkeypatch):
    monkeypatch.setattr(server.llm.tokenizer, "chat_template", "{{ raise_exception('roles must alternate') }}")
    assert "roles must alternate" in error_of(http.post(CHAT, json={"model": MODEL, "messages": HI}), 400)["message"]
    monkeypatch.setattr(server.llm.tokenizer, "chat_template", None)
    assert "no chat template" in error_of(http.post(CHAT, json={"model": MODEL, "messages": HI}), 400)["message"]


def test_without_a_tokenizer(chat_folder, tmp_path):
    import httpx

    with serving(chat_folder, {"skip_tokenizer_init": True}) as server, httpx.Client(base_url=server.url) as http:
        assert "no tokenizer" in error_of(http.post(CHAT, json={"model": MODEL, "messages": HI}), 400)["message"]
        assert "no tokenizer" in error_of(http.post(TEXT, json={"model": MODEL, "prompt": "hi"}), 400)["message"]
        assert "no tokenizer" in error_of(http.post("/detokenize", json={"tokens": [1]}), 400)["message"]
        found = http.post(
            TEXT, json={"model": MODEL, "prompt": [5, 6], "max_tokens": 2, "logprobs": 0, "temperature": 0}
        ).json()
        assert found["choices"][0]["text"] == ""
        assert found["choices"][0]["logprobs"]["tokens"][0].startswith("token_id:")


def test_a_grammar_that_cannot_be_followed_is_the_requests_own(http):
    """Valid in all its parts, and yet nothing may come: the stop ids are the only tokens that the pattern allows."""
    ids = http.post("/tokenize", json={"prompt": "aaa", "add_special_tokens": False}).json()["tokens"]
    asked = {
        "model": MODEL,
        "prompt": "x",
        "structured_outputs": {"regex": "a{3}"},
        "stop_token_ids": sorted({*ids, ids[0]}),
    }
    answer = http.post(TEXT, json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "grammar_failed")
