"""Tools of /v1/chat/completions: what a model with random weights is made to call, and what it is shown."""

import contextlib
import json

import openai
import pytest

from tests.server.conftest import MODEL, check_refused, make_chat_folder, serving
from twophase import StructuredOutputs
from twophase.core.request import CompletionOutput, RequestMetrics, RequestOutput, SamplingParams
from twophase_features.structured_outputs.tool_calls import Call, ToolCalls, written
from twophase_server.endpoint import Call as AcceptedCall
from twophase_server.openai_chat import ChatFormat
from twophase_server.tenants import Account, Quota

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "What is the weather in Paris?"}]


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"Calls {name}.", "parameters": parameters}}


CITY = {"enum": ["Paris", "Oslo"]}
TOOLS = [tool("get_weather", city=CITY, days={"enum": [1, 2]}), tool("get_time", city=CITY)]
NAMED = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With room for the description of tools."""
    return make_chat_folder(tmp_path_factory.mktemp("tools"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, {"num_kv_blocks": 2048}) as server:
        yield server


@pytest.fixture
def ask(client):
    def ask(**options):
        return client.chat.completions.create(**{"model": MODEL, "messages": HI, "tools": TOOLS, "seed": 1} | options)

    return ask


def collected(chunks):
    """The message of a stream, as clients put it together; each call has its id and name once."""
    content, calls, reasons = "", {}, []
    for chunk in chunks:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        for part in choice.delta.tool_calls or ():
            if part.index not in calls:
                assert part.index == len(calls)
                assert part.type == "function"
                assert part.id.startswith("call_")
                calls[part.index] = [part.function.name, ""]
            else:
                assert (part.id, part.type, part.function.name) == (None, None, None)
            calls[part.index][1] += part.function.arguments
        reasons += [choice.finish_reason] if choice.finish_reason else []
    return content, [Call(*each) for each in calls.values()], reasons


@pytest.mark.parametrize("options", [
    {"tool_choice": "required"}, {"tool_choice": NAMED}, {"tool_choice": "required", "parallel_tool_calls": False},
], ids=["required", "named", "one"])  # fmt: skip
def test_calls(ask, options):
    (choice,) = ask(**options).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls = [Call(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert 1 <= len(calls) <= (16 if options == {"tool_choice": "required"} else 1)
    assert len({call.id for call in choice.message.tool_calls}) == len(calls)
    for call in calls:
        assert call.name in ({"get_time"} if options["tool_choice"] is NAMED else {"get_time", "get_weather"})
        arguments = json.loads(call.arguments)
        assert list(arguments) == (["city", "days"] if call.name == "get_weather" else ["city"])
        assert arguments["city"] in CITY["enum"]
    assert collected(ask(**options, stream=True)) == ("", calls, ["tool_calls"])


@pytest.mark.parametrize("name", ["none", "auto"])
def test_a_function_may_have_a_modes_name(ask, name):
    choice = {"type": "function", "function": {"name": name}}
    (call,) = ask(tools=[*TOOLS, tool(name)], tool_choice=choice).choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == (name, {})


def test_a_form_of_the_answer_besides_tools(ask):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    for seed in range(8):
        (choice,) = ask(response_format=form, seed=seed).choices
        assert bool(choice.message.tool_calls) == (choice.finish_reason == "tool_calls")
        assert choice.message.tool_calls or json.loads(choice.message.content) in CITY["enum"]
    assert ask(response_format=form, tool_choice=NAMED).choices[0].message.tool_calls[0].function.name == "get_time"
    assert json.loads(ask(response_format=form, tool_choice="none").choices[0].message.content) in CITY["enum"]


def test_several_choices_and_logprobs(ask):
    answer = ask(tool_choice=NAMED, n=2, logprobs=True)
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls"] * 2
    assert all(choice.logprobs.content for choice in answer.choices)
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == len(ids)


def test_a_call_that_is_cut(ask):
    (choice,) = ask(tool_choice=NAMED, max_tokens=48, seed=1).choices
    assert choice.finish_reason == "length"
    full = ask(tool_choice=NAMED, seed=1).choices[0].message.tool_calls[0].function
    cut = choice.message.tool_calls[0].function if choice.message.tool_calls else None
    assert cut is None or (cut.name == "get_time" and full.arguments.startswith(cut.arguments))


def test_without_a_choice_the_text_is_the_models(ask, http, folder, server):
    """The model is shown the tools, and is free to write any text."""
    prompt = http.post("/tokenize", json={"messages": HI, "tools": TOOLS}).json()
    found = ask(temperature=0, max_tokens=20)
    assert found.usage.prompt_tokens == prompt["count"]
    body = {"model": MODEL, "prompt": prompt["tokens"], "temperature": 0, "max_tokens": 20}
    body["structured_outputs"] = {"regex": r"(.|\n)*"}  # the grammar's text has whole characters only
    text = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert (found.choices[0].message.content, found.choices[0].message.tool_calls) == (text, None)
    assert found.choices[0].finish_reason in ("stop", "length")


def test_tools_that_may_not_be_called_are_not_shown(ask):
    bare = ask(tools=openai.omit, max_tokens=4)
    found = ask(tool_choice="none", max_tokens=4)
    assert (found.choices, found.usage.prompt_tokens) == (bare.choices, bare.usage.prompt_tokens)


def shown(http, messages, **more):
    """The prompt's text."""
    tokens = http.post("/tokenize", json={"messages": messages, **more}).json()["tokens"]
    return http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]


HISTORY = [
    {"role": "system", "content": "Be brief."},
    *HI,
    {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}},
        {"id": "b", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
    ]},
    {"role": "tool", "tool_call_id": "a", "content": "rain"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "noon"}]},
]  # fmt: skip


def test_what_the_model_is_shown(http):
    calls = "\n".join(map(written, (Call("get_weather", '{"city": "Paris"}'), Call("get_time", "{}"))))
    results = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    rest = f"user: {HI[0]['content']}\nassistant: {calls}\nuser: {results}\nassistant:"
    assert shown(http, HISTORY) == f"system: Be brief.\n{rest}"
    text = shown(http, HISTORY, tools=TOOLS)
    assert text.startswith("system: Be brief.\n\n# Tools\n\nYou may call one or more functions")
    assert text.endswith(f"</tool_call>\n{rest}")
    for each in TOOLS:
        assert f"\n{json.dumps(each)}\n" in text
    assert shown(http, HI, tools=TOOLS).startswith("system: # Tools\n\n")


def called(**fields):
    return [*HI, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", **fields}]}]


CALL = {"function": {"name": "f", "arguments": "{}"}}
BAD = {
    "many": ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools", "must be a list of 0 to 128 items"),
    "another type": ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be one of function, got 'web_search'"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "is missing"),
    "a wrong name": ({"tools": [tool("a b")]}, "tools[0].function.name", "a function's name, which matches"),
    "one name twice": ({"tools": [tool("a"), tool("a")]}, "tools", "must have different names, got a, a"),
    "no object": ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]}, "tools", "parameters of f must be a JSON Schema of type 'object'"),
    "a schema that is wrong": ({"tools": [tool("f", a={"type": "nonsense"})]}, None, "structured_outputs.tool_calls cannot be enforced"),
    "a choice of nothing": ({"tools": [], "tool_choice": "required"}, "tool_choice", "'required' needs tools"),
    "a choice that is none": ({"tool_choice": "any"}, "tool_choice", "must be one of none, auto, required, or name a function, got 'any'"),
    "a choice of a stranger": ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "must name one of the tools (get_weather, get_time), got 'f'"),
    "a form besides": ({"structured_outputs": {"regex": "a"}}, None, "structured_outputs and tools both constrain the text"),
    "what contradicts": ({"ignore_eos": True}, None, "structured_outputs and ignore_eos=True contradict"),
    "older names": ({"functions": [{"name": "f"}]}, "functions", "use tools"),
    "a result of no call": ({"messages": [*HI, {"role": "tool", "tool_call_id": "x", "content": ""}]}, "messages[1].tool_call_id", "must be the id of a call before it, got 'x'"),
    "a call by a user": ({"messages": [{"role": "user", "content": "", "tool_calls": called(**CALL)[1]["tool_calls"]}]}, "messages[0].tool_calls", "is a field of role 'assistant', got role 'user'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_told_what_is_wrong(http, name):
    given, param, words = BAD[name]
    check_refused(http, CHAT, {"model": MODEL, "messages": HI, "tools": TOOLS, **given}, param, words)


METRICS = RequestMetrics(0.0, None, None, None, (), 0, 0, 0)


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_stream_of_text_and_calls(server, step):
    """The model writes both, a few characters at a time."""
    calls = [Call("get_time", '{"city": "Oslo"}'), Call("get_time", "{}")]
    text = "I look <tool_cal it up.\n" + "\n".join(map(written, calls))
    call = AcceptedCall(server.app.state.service, Account("", Quota()), {}, contextlib.AsyncExitStack())
    form = ToolCalls(functions={"get_time": {"type": "object"}})
    params = SamplingParams(structured_outputs=StructuredOutputs(tool_calls=form))
    streamed, whole = (ChatFormat(call, params) for _ in range(2))
    pieces = []
    for end in [*range(step, len(text), step), len(text)]:
        is_last = end == len(text)
        completion = CompletionOutput(index=0, text=text[:end], token_ids=(), finish_reason="stop" if is_last else None)
        output = RequestOutput("r", None, (), (completion,), is_last, METRICS)
        streamed.take(0, output)
        pieces += streamed.pieces(0)
    chunks = [openai.types.chat.ChatCompletionChunk.model_validate(piece) for piece in pieces]
    assert collected(chunks) == ("I look <tool_cal it up.\n", calls, ["tool_calls"])
    whole.take(0, output)
    message = whole.whole()["choices"][0]["message"]
    assert message["content"] == "I look <tool_cal it up.\n"
    assert [Call(**each["function"]) for each in message["tool_calls"]] == calls
