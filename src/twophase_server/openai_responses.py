"""POST /v1/responses, as the standard Open Responses has it (https://www.openresponses.org). Nothing is stored."""

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, final

from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS, SamplingParams
from twophase_features.structured_outputs.tool_calls import MAX_CALLS, Call
from twophase_server.answering import AnswerFormat, CallPart, Part, answer, usage
from twophase_server.endpoint import Call as Request
from twophase_server.endpoint import Endpoint
from twophase_server.errors import ApiError, invalid
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
from twophase_server.logprobs import chat_logprobs
from twophase_server.messages import MAX_LISTED, Content, Conversation, Messages
from twophase_server.openai_chat import default_max_tokens
from twophase_server.sampling import IGNORED, SAMPLING, SCHEDULING, SCHEMA_FIELDS, json_form, sampling_params
from twophase_server.tools import FUNCTION, FUNCTION_TYPE, MAX_TOOLS, NAME_OF_FUNCTION, ToolChoice, Tools, read_tools

_STORES_NOTHING = "nothing is stored; send the whole conversation in input"
_CONTENT = Content(("input_text", "output_text", "text"), ignored=("annotations", "logprobs"))
_STATUS = choice("in_progress", "completed", "incomplete")
_ITEMS: Mapping[str, Table] = {
    "message": Table(
        {
            "type": choice("message"),
            "role": choice("system", "developer", "user", "assistant"),
            "content": _CONTENT,
            **dict.fromkeys(("id", "phase"), NAME),
            "status": _STATUS,
        },
        required=("role", "content"),
    ),
    "function_call": Table(
        {
            "type": choice("function_call"),
            **dict.fromkeys(("id", "call_id"), NAME),
            "name": NAME_OF_FUNCTION,
            "arguments": ANY_TEXT,
            "status": _STATUS,
        },
        required=("call_id", "name", "arguments"),
    ),
    "function_call_output": Table(
        {
            "type": choice("function_call_output"),
            **dict.fromkeys(("id", "call_id"), NAME),
            "output": _CONTENT,
            "status": _STATUS,
        },
        required=("call_id", "output"),
    ),
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
    "tool_choice": (ToolChoice(Table({"type": FUNCTION_TYPE, "name": NAME_OF_FUNCTION}, required=("name",))), "auto"),
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
    fields, tools = call.fields, _tools(call.fields)
    prompt = await call.service.render(fields, lambda: _messages(fields, tools.prompt))
    call.service.require_length(len(prompt))
    form = fields.get("text", {}).get("format", {"type": "text"})
    if (form["type"] == "json_schema") != ("schema" in form):
        raise invalid("text.format.schema requires type 'json_schema', and the type requires it.", "text.format.schema")
    wants_logprobs = _LOGPROBS in fields.get("include", ()) or "top_logprobs" in fields
    params = sampling_params(
        fields,
        {"text.format": json_form(form["type"], form if "schema" in form else None), "tools": tools.form},
        logprobs=fields.get("top_logprobs", 0) if wants_logprobs else None,
        max_tokens=fields.get("max_output_tokens") or default_max_tokens(call.service, len(prompt)),
    )
    return await answer(call, [prompt], ResponseFormat(call, params))


responses = Endpoint(_answer, _TABLE)


def _tools(fields: Mapping[str, Any]) -> Tools:
    asked = fields.get("tool_choice")
    return read_tools(
        [{name: value for name, value in each.items() if name != "type"} for each in fields.get("tools", ())],
        asked["name"] if isinstance(asked, dict) else asked,
        fields.get("parallel_tool_calls", True),
        min(MAX_CALLS, fields.get("max_tool_calls", MAX_CALLS)),
    )


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


@final
class ResponseFormat(AnswerFormat):
    """A `response` with an item for the text and one for each call; a stream of events that build it."""

    def __init__(self, call: Request, params: SamplingParams) -> None:
        super().__init__(call, params)
        given = {name: call.fields.get(name, default) for name, (_, default) in _ECHOED.items()}
        text = {"format": {"type": "text"}, **given["text"]}
        tools = [{"description": None, "parameters": None, "strict": None, **each} for each in given["tools"]]
        self._response: dict[str, Any] = {
            "id": _id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "incomplete_details": None,
            "error": None,
            "model": call.service.model_name,
            **{**given, "text": text, "tools": tools},
            **{name: getattr(params, name) for name in ("temperature", "top_p")},
            **{name: getattr(params, name) for name in ("presence_penalty", "frequency_penalty")},
            "output": [],
            "usage": None,
            "previous_response_id": None,
            "truncation": "disabled",
            "service_tier": "default",
            "background": False,
            "store": False,
        }
        self._num_events = 0

    def whole(self) -> dict[str, Any]:
        for _ in (*self.pieces(0), *self.last_pieces()):  # the events build the response
            pass
        return self._response

    def pieces(self, position: int) -> Iterator[dict[str, Any]]:
        for _, part in self.parts(position):
            if part.is_first:
                yield self._event("created", response=self._response)
                yield self._event("in_progress", response=self._response)
            if part.text or (part.is_last and not part.num_calls):
                yield from self._more_text(part)
            for call in part.calls:
                yield from self._more_of_call(call)
            if part.is_last:
                yield from self._end_of_item("incomplete" if part.completion.finish_reason == "length" else "completed")

    def last_pieces(self) -> Iterator[dict[str, Any]]:
        (output,) = self._newest.values()
        is_complete = output.outputs[0].finish_reason != "length"
        yield self._end("completed" if is_complete else "incomplete")

    def failure(self, error: ApiError) -> Iterator[dict[str, Any]]:
        told = error.to_dict()["error"]
        yield {"type": "error", "sequence_number": self._next_number(), "error": told}
        self._response["error"] = {"code": told["code"] or told["type"], "message": told["message"]}
        yield self._end("failed")

    def _event(self, kind: str, **content: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "sequence_number": self._next_number(), **content}

    def _next_number(self) -> int:
        self._num_events += 1
        return self._num_events - 1

    def _end(self, status: str) -> dict[str, Any]:
        counted = usage(self._newest.values())
        self._response |= {
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": {
                "input_tokens": counted["prompt_tokens"],
                "input_tokens_details": counted["prompt_tokens_details"],
                "output_tokens": counted["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counted["total_tokens"],
            },
        }
        return self._event(status, response=self._response)

    # -- items of the output: the last one grows

    @property
    def _place(self) -> dict[str, Any]:
        """The last item's, for events about it."""
        output = self._response["output"]
        found = {"item_id": output[-1]["id"], "output_index": len(output) - 1}
        return {**found, "content_index": 0} if output[-1]["type"] == "message" else found

    def _new_item(self, prefix: str, kind: str, **content: Any) -> dict[str, Any]:
        item = {"id": _id(prefix), "type": kind, "status": "in_progress", **content}
        self._response["output"].append(item)
        return self._event("output_item.added", output_index=len(self._response["output"]) - 1, item=item)

    def _more_text(self, part: Part) -> Iterator[dict[str, Any]]:
        output = self._response["output"]
        if not output:
            yield self._new_item("msg", "message", role="assistant", content=[])
            content = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            output[-1]["content"] = [content]
            yield self._event("content_part.added", **self._place, part=content)
        (content,) = output[-1]["content"]
        texts, has_logprobs = self.service.token_texts, self.params.logprobs is not None
        logprobs = chat_logprobs(part.entries, texts)["content"] if has_logprobs else []
        content["text"] += part.text
        content["logprobs"] += logprobs
        if part.text:
            yield self._event("output_text.delta", **self._place, delta=part.text, logprobs=logprobs)

    def _more_of_call(self, part: CallPart) -> Iterator[dict[str, Any]]:
        if part.name is not None:
            if self._response["output"]:
                yield from self._end_of_item("completed")
            yield self._new_item("fc", "function_call", call_id=_id("call"), name=part.name, arguments="")
        self._response["output"][-1]["arguments"] += part.arguments
        if part.arguments:
            yield self._event("function_call_arguments.delta", **self._place, delta=part.arguments)

    def _end_of_item(self, status: str) -> Iterator[dict[str, Any]]:
        output = self._response["output"]
        if not output:
            return
        item, place = output[-1], self._place
        item["status"] = status
        if item["type"] == "message":
            (content,) = item["content"]
            text = {name: content[name] for name in ("text", "logprobs")}
            yield self._event("output_text.done", **place, **text)
            yield self._event("content_part.done", **place, part=content)
        else:
            named = {name: item[name] for name in ("name", "arguments")}
            yield self._event("function_call_arguments.done", **place, **named)
        yield self._event("output_item.done", output_index=place["output_index"], item=item)


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
