"""POST /v1/responses, as the standard Open Responses has it (https://www.openresponses.org). Nothing is stored."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS
from twophase_features.structured_outputs.tool_calls import Call
from twophase_server.answering import answer
from twophase_server.endpoint import Call as Request
from twophase_server.endpoint import Endpoint
from twophase_server.errors import invalid
from twophase_server.fields import (
    ANY_TEXT,
    FLAG,
    NAME,
    OBJECT,
    ListOf,
    Reader,
    Table,
    Unsupported,
    choice,
    whole,
)
from twophase_server.messages import MAX_LISTED, Content, Conversation, Messages
from twophase_server.openai_chat import default_max_tokens
from twophase_server.response_format import ResponseFormat
from twophase_server.sampling import IGNORED, SAMPLING, SCHEDULING, SCHEMA_FIELDS, json_form, sampling_params
from twophase_server.tools import FUNCTION, FUNCTION_TYPE, MAX_TOOLS, NAME_OF_FUNCTION, ToolChoice, read_tools

_STORES_NOTHING = "nothing is stored; send the whole conversation in input"
_CONTENT = Content(("input_text", "output_text", "text"), ignored=("annotations", "logprobs"))
# An item of an answer has these.
_OWN: dict[str, Reader] = {"id": NAME, "status": choice("in_progress", "completed", "incomplete")}
_ROLE = choice("system", "developer", "user", "assistant")
_MESSAGE: Mapping[str, Reader] = {"role": _ROLE, "content": _CONTENT, "phase": NAME}
_CALL: Mapping[str, Reader] = {"call_id": NAME, "name": NAME_OF_FUNCTION, "arguments": ANY_TEXT}
_OUTPUT: Mapping[str, Reader] = {"call_id": NAME, "output": _CONTENT}
_ITEMS: Mapping[str, Table] = {
    name: Table({"type": choice(name), **_OWN, **fields}, required=required)
    for name, fields, required in (
        ("message", _MESSAGE, ("role", "content")),
        ("function_call", _CALL, ("call_id", "name", "arguments")),
        ("function_call_output", _OUTPUT, ("call_id", "output")),
    )
}


class _Item:
    """An item of the input, which is read by the table of its type."""

    schema: Mapping[str, Any] = {"anyOf": [table.schema for table in _ITEMS.values()]}

    def read(self, value: Any, path: str) -> dict[str, Any]:
        kind = OBJECT.read(value, path).get("type") or "message"
        if kind == "item_reference":
            raise invalid(f"{path}.type 'item_reference' is not supported: {_STORES_NOTHING}.", f"{path}.type")
        choice(*_ITEMS).read(kind, f"{path}.type")
        return {**_ITEMS[kind].read(value, path), "type": kind}


class _Input:
    """Text, or a list of items, which are read later."""

    items = ListOf(_Item(), MAX_LISTED, at_least=1)
    schema: Mapping[str, Any] = {"anyOf": [ANY_TEXT.schema, items.schema]}

    def read(self, value: Any, path: str) -> Any:
        return (ANY_TEXT if isinstance(value, str) else self.items.outer).read(value, path)


_FORMAT = Table(
    {"type": choice("text", "json_object", "json_schema"), **SCHEMA_FIELDS},
    required=("type",),
)
_EFFORT = dict.fromkeys(("effort", "summary", "generate_summary"), NAME)  # no model here has a setting for it
# Fields that come back in the answer as they are, and their defaults.
_ECHOED: Mapping[str, tuple[Reader, Any]] = {
    "instructions": (ANY_TEXT, None),
    "max_output_tokens": (SAMPLING["max_tokens"], None),
    "max_tool_calls": (whole(at_least=1), None),
    "metadata": (IGNORED["metadata"], {}),
    "parallel_tool_calls": (FLAG, True),
    "prompt_cache_key": (IGNORED["prompt_cache_key"], None),
    "reasoning": (Table(_EFFORT), None),
    "safety_identifier": (IGNORED["safety_identifier"], None),
    "text": (Table({"format": _FORMAT, "verbosity": NAME}), {}),
    "tool_choice": (
        ToolChoice(Table({"type": FUNCTION_TYPE, "name": NAME_OF_FUNCTION}, required=("type", "name"))),
        "auto",
    ),
    "tools": (ListOf(Table({"type": FUNCTION_TYPE, **FUNCTION}, required=("type", "name")), MAX_TOOLS), []),
    "top_logprobs": (whole(at_least=0, at_most=MAX_LOGPROBS), 0),
}
_LOGPROBS, _REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"
_TABLE = Table(
    {
        **{name: each for name, each in SAMPLING.items() if name not in ("n", "max_tokens")},
        **IGNORED,
        **SCHEDULING,
        **{name: reader for name, (reader, _) in _ECHOED.items()},
        "model": NAME,
        "input": _Input(),
        "stream": FLAG,
        "stream_options": Table({"include_obfuscation": FLAG}),
        "include": ListOf(choice(_LOGPROBS, _REASONING), 2),
    },
    {
        "previous_response_id": Unsupported(_STORES_NOTHING),
        "conversation": Unsupported(_STORES_NOTHING),
        "prompt": Unsupported(_STORES_NOTHING),
        "background": Unsupported(_STORES_NOTHING, (False,)),
        "truncation": Unsupported("a conversation that is too long is refused", ("disabled",)),
        "service_tier": Unsupported("there is one tier; use priority", ("auto", "default")),
    },
    required=("model", "input"),
)


async def _answer(call: Request) -> Response:
    fields = call.fields
    asked = fields.get("text", {}).get("format", {"type": "text"})
    form = json_form(asked["type"], asked.get("schema"), "text.format.schema")
    tools = read_tools(fields, form)
    prompt = await call.service.render(fields, lambda: _messages(fields, tools.prompt))
    call.service.require_length(len(prompt))
    wants_logprobs = _LOGPROBS in fields.get("include", ()) or "top_logprobs" in fields
    params = sampling_params(
        fields,
        {"text.format": tools.form or form},
        logprobs=fields.get("top_logprobs", 0) if wants_logprobs else None,
        max_tokens=fields.get("max_output_tokens") or default_max_tokens(call.service, len(prompt)),
    )
    given = {name: fields.get(name, default) for name, (_, default) in _ECHOED.items()}
    return await answer(call, [prompt], ResponseFormat(call, params, given))


responses = Endpoint(_answer, _TABLE)


def _messages(fields: Mapping[str, Any], system: str) -> Messages:
    found, given = Conversation(), fields["input"]
    if "instructions" in fields:
        found.say("system", fields["instructions"])
    if isinstance(given, str):
        found.say("user", given)
        return found.with_system(system)
    for i, item in enumerate(_Input.items.read(given, "input")):
        if item["type"] == "message":
            found.say(item["role"], item["content"])
        elif item["type"] == "function_call":
            found.call(item["call_id"], Call(item["name"], item["arguments"]))
        else:
            found.return_to(item["call_id"], item["output"], f"input[{i}].call_id")
    return found.with_system(system)
