"""POST /v1/chat/completions."""

import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS, RequestOutput, TokenLogprobs
from twophase.scheduling.limits import num_blocks_at_most
from twophase.scheduling.scheduler import Scheduler
from twophase_server.answering import CallPart, Part, answer
from twophase_server.choices import ChoicesFormat
from twophase_server.endpoint import Call, Endpoint
from twophase_server.errors import invalid
from twophase_server.fields import FLAG, Reader, Table, Unsupported, whole
from twophase_server.logprobs import chat_logprobs
from twophase_server.messages import MESSAGES, read_messages
from twophase_server.sampling import COMMON, COMMON_UNSUPPORTED, SAMPLING, forms_of, sampling_params
from twophase_server.service import Service
from twophase_server.tools import CHAT_TOOL_FIELDS, read_tools

_FIELDS: Mapping[str, Reader] = {
    **COMMON,
    **CHAT_TOOL_FIELDS,
    "messages": MESSAGES.outer,
    "special_tokens_in_content": FLAG,
    "logprobs": FLAG,
    "top_logprobs": whole(at_least=0, at_most=MAX_LOGPROBS),
    "max_completion_tokens": SAMPLING["max_tokens"],
}
_UNSUPPORTED = {
    **COMMON_UNSUPPORTED,
    "functions": Unsupported("use tools", ([],)),
    "function_call": Unsupported("use tool_choice", ("none",)),
    "modalities": Unsupported("the model writes text only", (["text"],)),
    "audio": Unsupported("the model writes text only"),
    "web_search_options": Unsupported("there is no search here"),
    "service_tier": Unsupported("there is one tier; use priority", ("auto", "default")),
    "echo": Unsupported("use /v1/completions"),
    "continue_final_message": Unsupported("use /v1/completions", (False,)),
    "chat_template": Unsupported("the model's own is used"),
}


async def _answer(call: Call) -> Response:
    fields, service, forms = call.fields, call.service, forms_of(call.fields)
    tools = read_tools(fields, forms["response_format"])
    if tools.form is not None:  # which contains the other
        forms |= {"response_format": None, "tools": tools.form}
    prompt = await service.render(fields, lambda: read_messages(fields["messages"], tools.prompt))
    service.require_length(len(prompt))
    max_tokens = _max_tokens(fields, len(prompt), service)
    params = sampling_params(fields, forms, logprobs=_num_logprobs(fields), max_tokens=max_tokens)
    return await answer(call, [prompt], ChatFormat(call, params))


chat_completions = Endpoint(_answer, Table(_FIELDS, _UNSUPPORTED, required=("model", "messages")))


def _num_logprobs(fields: Mapping[str, Any]) -> int | None:
    if not fields.get("logprobs"):
        if fields.get("top_logprobs"):
            raise invalid("top_logprobs requires logprobs=true.", "top_logprobs")
        return None
    return int(fields.get("top_logprobs", 0))


def _max_tokens(fields: Mapping[str, Any], num_prompt_tokens: int, service: Service) -> int:
    """The field's value under its older or newer name; by default as `max_new_tokens`."""
    given = {fields[name] for name in ("max_tokens", "max_completion_tokens") if name in fields}
    if len(given) > 1:
        raise invalid(
            f"max_tokens and max_completion_tokens mean the same; got {fields['max_tokens']} and "
            f"{fields['max_completion_tokens']}.",
            "max_completion_tokens",
        )
    if given:
        return int(given.pop())
    return default_max_tokens(service, num_prompt_tokens, fields.get("n", 1))


def default_max_tokens(service: Service, num_prompt_tokens: int, n: int = 1) -> int:
    """The room left in the context and in the pool, and at most the server's `default_max_tokens`."""
    room, most = max_new_tokens(service.llm.llm.scheduler, num_prompt_tokens, n), service.settings.default_max_tokens
    return room if most is None else min(room, most)


def max_new_tokens(scheduler: Scheduler, num_prompt_tokens: int, n: int) -> int:
    """The largest `max_tokens` with which the scheduler finds room for such a request, and at least 1."""
    config, cache = scheduler.config, scheduler.cache

    def does_not_fit(max_tokens: int) -> bool:
        return num_blocks_at_most(num_prompt_tokens, max_tokens, n, config, cache) > cache.num_blocks

    most = max(1, config.max_model_len - num_prompt_tokens)
    return max(1, bisect_left(range(1, most + 1), True, key=does_not_fit))


@final
class ChatFormat(ChoicesFormat):
    """`chat.completion`."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, output: RequestOutput, part: Part) -> dict[str, Any]:
        content = None if part.calls and not part.text else part.text
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
        if part.calls:
            message["tool_calls"] = [_tool_call(each) for each in part.calls]
        return {"index": index, "message": message, "logprobs": self._logprobs(part.entries), **part.reasons}

    def new_choices(self, index: int, output: RequestOutput, part: Part) -> Iterator[dict[str, Any]]:
        if part.is_first:
            yield self._chunk(index, {"role": "assistant", "content": ""})
        if part.calls:
            more = {"content": part.text} if part.text else {}
            calls = [{"index": each.number, **_tool_call(each)} for each in part.calls]
            yield self._chunk(index, {**more, "tool_calls": calls}, part.entries)
        elif part.text or part.entries:
            yield self._chunk(index, {"content": part.text}, part.entries)
        if part.is_last:
            yield self._chunk(index, {}) | part.reasons

    def _chunk(self, index: int, delta: Mapping[str, Any], entries: Sequence[TokenLogprobs] = ()) -> dict[str, Any]:
        logprobs = self._logprobs(entries) if entries else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(entries, self.service.token_texts) if self.params.logprobs is not None else None


def _tool_call(part: CallPart) -> dict[str, Any]:
    """A call, or a part of it; its first part has an id and a name."""
    if part.name is None:
        return {"function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}
