"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from starlette.requests import Request
from starlette.responses import Response

from twophase.core.request import MAX_LOGPROBS, CompletionOutput, RequestOutput, TokenLogprobs
from twophase.core.rules import whole_number
from twophase_server.answering import AnswerFormat, EngineCall, answer, engine_options, usage, with_usage
from twophase_server.errors import invalid
from twophase_server.fields import FLAG, Unsupported, read_fields, read_object
from twophase_server.logprobs import chat_logprobs
from twophase_server.messages import MESSAGES
from twophase_server.sampling import (
    COMMON_RULES,
    COMMON_UNSUPPORTED,
    SAMPLING_RULES,
    UsageWish,
    sampling_params,
    wants_usage,
)
from twophase_server.service import Service, service_of
from twophase_server.tenants import Lease

_NO_TOOLS = "the engine calls no tools"
_RULES = {
    **SAMPLING_RULES,
    **COMMON_RULES,
    "messages": MESSAGES,
    "special_tokens_in_content": FLAG,
    "logprobs": FLAG,
    "top_logprobs": whole_number(at_least=0, at_most=MAX_LOGPROBS),
    "max_completion_tokens": SAMPLING_RULES["max_tokens"],
}
_UNSUPPORTED = {
    **COMMON_UNSUPPORTED,
    "tools": Unsupported(_NO_TOOLS, ([],)),
    "tool_choice": Unsupported(_NO_TOOLS, ("none", "auto")),
    "functions": Unsupported(_NO_TOOLS, ([],)),
    "function_call": Unsupported(_NO_TOOLS, ("none",)),
    "modalities": Unsupported("the model writes text only", (["text"],)),
    "audio": Unsupported("the model writes text only"),
    "web_search_options": Unsupported(_NO_TOOLS),
    "service_tier": Unsupported("there is one tier; use priority", ("auto", "default")),
    "echo": Unsupported("use /v1/completions"),
    "continue_final_message": Unsupported("use /v1/completions", (False,)),
    "chat_template": Unsupported("the model's own is used"),
}


async def chat_completions(request: Request) -> Response:
    service = service_of(request)
    lease = service.enter(request)
    try:
        service.llm.check_acceptance()
        fields = read_fields(await read_object(request, service.settings.max_body_bytes), _RULES, _UNSUPPORTED)
        service.require_model(fields.get("model"))
        if "messages" not in fields:
            raise invalid("messages is missing.", "messages")
        prompt = await service.render(fields)
        call = _engine_call(fields, prompt, service, lease)
        answer_format = ChatFormat(service, call.params.logprobs is not None, wants_usage(fields))
        return await answer(request, service, lease, call, answer_format)
    except BaseException:
        lease.end()
        raise


def _engine_call(fields: Mapping[str, Any], prompt: Sequence[int], service: Service, lease: Lease) -> EngineCall:
    service.require_length(len(prompt))
    service.require_n(fields.get("n", 1))
    params = sampling_params(
        fields,
        logprobs=_num_logprobs(fields),
        max_tokens=_max_tokens(fields, len(prompt), service),
    )
    return EngineCall([prompt], params, fields.get("stream", False), engine_options(fields, service, lease))


def _num_logprobs(fields: Mapping[str, Any]) -> int | None:
    if not fields.get("logprobs"):
        if fields.get("top_logprobs"):
            raise invalid("top_logprobs requires logprobs=true.", "top_logprobs")
        return None
    return int(fields.get("top_logprobs", 0))


def _max_tokens(fields: Mapping[str, Any], num_prompt_tokens: int, service: Service) -> int:
    """The field's value under its older or newer name; by default the room left in the context and in the pool."""
    given = {fields[name] for name in ("max_tokens", "max_completion_tokens") if name in fields}
    if len(given) > 1:
        raise invalid(
            f"max_tokens and max_completion_tokens mean the same; got {fields['max_tokens']} and "
            f"{fields['max_completion_tokens']}.",
            "max_completion_tokens",
        )
    if given:
        return int(given.pop())
    return service.llm.llm.scheduler.max_new_tokens(num_prompt_tokens, fields.get("n", 1))


@final
class ChatFormat(AnswerFormat):
    """`chat.completion`, and `chat.completion.chunk` where it is streamed."""

    def __init__(self, service: Service, wants_logprobs: bool, usage_wish: UsageWish) -> None:
        self._service = service
        self._wants_logprobs, self._usage_wish = wants_logprobs, usage_wish
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": service.model_name}
        self._num_shown: dict[int, tuple[int, int]] = {}  # characters and tokens of begun completions
        self._ended: set[int] = set()

    def whole(self, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        choices = [
            {
                "index": completion.index,
                "message": {"role": "assistant", "content": completion.text, "refusal": None},
                "logprobs": self._logprobs(completion.logprobs or ()),
                "finish_reason": completion.finish_reason,
                "stop_reason": completion.stop_reason,
            }
            for completion in output.outputs
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage(outputs)}

    def pieces(self, position: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for chunk in self._chunks(output):
            yield with_usage(chunk, self._usage_wish, output)

    def _chunks(self, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for completion in output.outputs:
            index = completion.index
            if index not in self._num_shown:
                self._num_shown[index] = 0, 0
                yield self._chunk(index, {"role": "assistant", "content": ""})
            num_characters, num_tokens = self._num_shown[index]
            new = completion.text[num_characters:]
            entries = (completion.logprobs or ())[num_tokens:]
            if new or entries:
                self._num_shown[index] = num_characters + len(new), num_tokens + len(entries)
                yield self._chunk(index, {"content": new}, entries)
            if completion.finish_reason is not None and index not in self._ended:
                self._ended.add(index)
                yield self._chunk(index, {}, ended=completion)

    def last_piece(self, outputs: Sequence[RequestOutput]) -> dict[str, Any] | None:
        if not self._usage_wish.at_end:
            return None
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage(outputs)}

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, str],
        entries: Sequence[TokenLogprobs] = (),
        ended: CompletionOutput | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(entries) if entries else None,
            "finish_reason": None if ended is None else ended.finish_reason,
        }
        if ended is not None:
            choice["stop_reason"] = ended.stop_reason
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(entries, self._service.token_texts) if self._wants_logprobs else None
