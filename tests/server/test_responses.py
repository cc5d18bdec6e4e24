"""/v1/responses, asked by OpenAI's own client: the text of /v1/chat/completions, in another form."""

import json

import openai
import pytest

from tests.server.conftest import MODEL, check_refused, serving
from tests.server.test_tools import CITY, HISTORY, TOOLS, folder  # noqa: F401  (a fixture)

PATH = "/v1/responses"
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
GREEDY = {"temperature": 0, "max_output_tokens": 12}
SCHEMA = {"type": "object", "properties": {"city": CITY}, "required": ["city"], "additionalProperties": False}


@pytest.fixture(scope="module")
def server(folder):  # noqa: F811
    with serving(folder, {"num_kv_blocks": 2048}) as server:
        yield server


@pytest.fixture
def ask(client):
    def ask(given="What does the fox say?", **options):
        return client.responses.create(model=MODEL, input=given, **options)

    return ask


def chat(client, messages, **options):
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12, **options)


CONVERSATIONS = {
    "text": ("Hi.", {}, [("user", "Hi.")]),
    "instructions": ("Hi.", {"instructions": "Be brief."}, [("system", "Be brief."), ("user", "Hi.")]),
    "messages": (
        [
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
            {
                "type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "phase": "final_answer",
                "content": [{"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}],
            },
            {"role": "user", "content": "Bye."},
        ],
        {},
        [("system", "Be brief."), ("user", "Hi."), ("assistant", "Hello!"), ("user", "Bye.")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_text_is_that_of_a_chat(ask, client, name):
    given, more, messages = CONVERSATIONS[name]
    found = ask(given, **GREEDY, **more)
    wanted = chat(client, [{"role": role, "content": content} for role, content in messages])
    assert found.output_text == wanted.choices[0].message.content
    is_cut = wanted.choices[0].finish_reason == "length"
    assert found.status == ("incomplete" if is_cut else "completed")
    assert (found.incomplete_details.reason if is_cut else found.incomplete_details) == (
        "max_output_tokens" if is_cut else None
    )
    assert (found.usage.input_tokens, found.usage.output_tokens) == (
        wanted.usage.prompt_tokens, wanted.usage.completion_tokens,
    )  # fmt: skip
    assert found.instructions == more.get("instructions")
    assert (found.model, found.temperature, found.store, found.previous_response_id) == (MODEL, 0, False, None)


def events_of(http, **body):
    """A stream's events. Names are types; numbers count; the end is marked."""
    with http.stream("POST", PATH, json={"model": MODEL, "stream": True} | body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *blocks, end = "".join(answer.iter_text()).split("\n\n")[:-1]
    assert end == "data: [DONE]"
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1]["sequence_number"] == number
    return events


def without_ids(value):
    """Ids, times, hits of the prefix cache, and a log-probability's last bits are different in each answer."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        changing = ("id", "call_id", "created_at", "completed_at", "input_tokens_details", "logprobs")
        return {key: without_ids(each) for key, each in value.items() if key not in changing}
    return value


TEXT_EVENTS = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
CALL_EVENTS = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done"]


@pytest.mark.parametrize("options", [
    {}, {"tools": FLAT, "tool_choice": "required", "max_output_tokens": 200}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
], ids=["text", "calls", "logprobs"])  # fmt: skip
def test_a_stream_builds_the_answer(http, options):
    body = {"input": "What does the fox say?", "seed": 1, "max_output_tokens": 20, **options}
    whole = http.post(PATH, json={"model": MODEL, **body}).json()
    created, in_progress, *events, last = events_of(http, **body)
    assert [each["type"] for each in (created, in_progress)] == ["response.created", "response.in_progress"]
    assert (created["response"]["output"], created["response"]["usage"]) == ([], None)
    assert last["type"] == f"response.{whole['status']}"
    assert without_ids(last["response"]) == without_ids(whole)
    assert {"id", "created_at", "completed_at", "error", "tools", "tool_choice", "usage", "metadata"} <= set(whole)
    items = whole["output"]
    for i, item in enumerate(last["response"]["output"]):
        own = [event for event in events if event["output_index"] == i]
        kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in own))
        assert kinds == [*(TEXT_EVENTS if item["type"] == "message" else CALL_EVENTS), "output_item.done"]
        assert own[-1]["item"] == item
        assert own[0]["item"]["id"] == item["id"]
        assert {event["item_id"] for event in own[1:-1]} == {item["id"]}
        text = "".join(event.get("delta", "") for event in own)
        assert text == (item["content"][0]["text"] if item["type"] == "message" else item["arguments"])
        if "include" in options:
            streamed = [entry for event in own if "delta" in event for entry in event["logprobs"]]
            assert streamed == item["content"][0]["logprobs"] != []
            assert all(len(entry["top_logprobs"]) == 2 for entry in streamed)
    assert len(items) >= 1


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_time"}])
def test_calls(ask, choice):
    found = ask(tools=FLAT, tool_choice=choice, extra_body={"seed": 2})
    assert found.status == "completed"
    for call in found.output:
        assert call.type == "function_call"
        assert call.name in ("get_time", "get_weather")
        assert json.loads(call.arguments)["city"] in CITY["enum"]
    assert len({call.call_id for call in found.output}) == len(found.output)
    if choice != "required":
        assert [call.name for call in found.output] == ["get_time"]
    assert len(ask(tools=FLAT, tool_choice="required", max_tool_calls=1, extra_body={"seed": 2}).output) == 1


def test_a_conversation_with_tools(ask, client):
    """The same prompt as a chat's."""
    items = [{"role": message["role"], "content": message["content"]} for message in HISTORY[:2]]
    for call in HISTORY[2]["tool_calls"]:
        items.append({"type": "function_call", "call_id": call["id"], "id": "fc_1", **call["function"]})
    items.append({"type": "function_call_output", "call_id": "a", "output": "rain"})
    items.append({"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "noon"}]})
    found = ask(items, tools=FLAT, **GREEDY)
    wanted = chat(client, HISTORY, tools=TOOLS)
    assert found.usage.input_tokens == wanted.usage.prompt_tokens
    assert found.output_text == wanted.choices[0].message.content


def test_json_of_a_schema(ask):
    form = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}}
    found = ask(text=form, extra_body={"seed": 1})
    assert json.loads(found.output_text)["city"] in CITY["enum"]
    assert found.text.format.name == "place"
    forced = ask(text=form, tools=FLAT, tool_choice="required", extra_body={"seed": 1})  # calls have their own form
    assert {item.type for item in forced.output} == {"function_call"}


BAD = {
    "no input": ({"input": None}, "input", "is missing"),
    "a conversation of another request": ({"previous_response_id": "resp_1"}, "previous_response_id", "nothing is stored; send the whole conversation in input"),
    "an item of another request": ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "nothing is stored"),
    "work in the background": ({"background": True}, "background", "nothing is stored"),
    "truncation": ({"truncation": "auto"}, "truncation", "too long is refused"),
    "another item": ({"input": [{"type": "reasoning"}]}, "input[0].type", "one of message, function_call, function_call_output"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", "the model reads text only"),
    "a role": ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "must be one of system"),
    "a result of no call": ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "input[0].call_id", "must be the id of a call before it"),
    "a chat's tool": ({"tools": TOOLS}, "tools[0].function", "unknown field"),
    "a chat's choice": ({"tools": FLAT, "tool_choice": {"type": "function", "function": {"name": "get_time"}}}, "tool_choice.function", "unknown field"),
    "a search": ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be one of function"),
    "a chat's limit": ({"max_tokens": 2}, "max_tokens", "Did you mean"),
    "a form without a schema": ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "requires type 'json_schema'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_told_what_is_wrong(http, name):
    given, param, words = BAD[name]
    check_refused(http, PATH, {"model": MODEL, "input": "hi", **given}, param, words)


def test_a_failure_in_a_stream(server, client, http, monkeypatch):
    from twophase.engine import model_run as module

    def sample(logits, rows, before_wait):
        raise RuntimeError("planted")

    monkeypatch.setattr(module, "sample", sample)
    error, last = events_of_failure(http)
    assert (error["type"], error["error"]["code"]) == ("error", "request_failed")
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "planted" in last["response"]["error"]["message"]
    with pytest.raises(openai.InternalServerError, match="planted"):
        client.responses.create(model=MODEL, input="hi")


def events_of_failure(http):
    answer = http.post(PATH, json={"model": MODEL, "stream": True, "input": "hi"})
    return [json.loads(block.split("data: ")[1]) for block in answer.text.split("\n\n")[:-1]]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_what_would_need_a_store_is_refused(http, method):
    error = http.request(method, f"{PATH}/resp_1").json()["error"]
    assert error["code"] == "unsupported_endpoint"
    assert "nothing is stored" in error["message"]
