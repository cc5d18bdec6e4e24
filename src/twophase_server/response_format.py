"""Answers of /v1/responses: an object that grows by items, and the events by which a stream tells its growth."""

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, final

from twophase.core.request import SamplingParams
from twophase_server.answering import AnswerFormat, CallPart, Part, usage
from twophase_server.endpoint import Call
from twophase_server.errors import ApiError
from twophase_server.logprobs import chat_logprobs


@final
class ResponseFormat(AnswerFormat):
    """A `response` with an item for the text and one for each call; a stream of events that build it.

    Args:
        given: Fields of the request that are part of the response.
    """

    def __init__(self, call: Call, params: SamplingParams, given: Mapping[str, Any]) -> None:
        super().__init__(call, params)
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
        for each in (token for entry in logprobs for token in (entry, *entry["top_logprobs"])):
            each["bytes"] = each["bytes"] or []  # here they may not be null
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
